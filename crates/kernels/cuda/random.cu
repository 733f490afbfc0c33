// Random fills: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011). Element i depends only on the key and i: it uses
// block i / 4 of the random bits, or i / 2 for types with 64 random bits per element. Half-precision values are rounded
// floats. k = [seed, sequence].
//
// uniform: in [c[0], c[1]), c[2] the largest value below; uniform_not_zero: whether that is not 0; normal: with mean c[0]
// and deviation c[1]; bernoulli: c[1] with probability c[0], else 0. The names are those of `Distribution` in
// crates/kernels/src/families/random/mod.rs.

#undef INTEGER
#ifdef T_IS_BYTE
#define INTEGER(x) to_u8(x)
#elif defined(T_IS_INT)
#define INTEGER(x) to_i32(x)
#elif defined(T_IS_UNSIGNED)
#define INTEGER(x) to_u32(x)
#else
#define INTEGER(x) to_i64(x)
#endif

#ifndef HIGHWATER_PHILOX
#define HIGHWATER_PHILOX

struct Words {
    u32 w[4];
};

// A word by number: registers cannot be indexed.
DEVICE u32 word(const Words& words, u32 n) {
    return n < 2 ? (n == 0 ? words.w[0] : words.w[1]) : (n == 2 ? words.w[2] : words.w[3]);
}

DEVICE Words philox(u64 seed, u64 sequence, u64 block) {
    u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = (u32)sequence, c3 = (u32)(sequence >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        if (round > 0) {
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        u64 first = (u64)c0 * 0xD2511F53u;
        u64 second = (u64)c2 * 0xCD9E8D57u;
        u32 n0 = (u32)(second >> 32) ^ c1 ^ k0;
        u32 n2 = (u32)(first >> 32) ^ c3 ^ k1;
        c1 = (u32)second;
        c3 = (u32)first;
        c0 = n0;
        c2 = n2;
    }
    Words words = {{c0, c1, c2, c3}};
    return words;
}

DEVICE u64 wide(u32 low, u32 high) { return (u64)high << 32 | low; }

// From 24 bits.
DEVICE double narrow_uniform(const Words& words, u32 lane) { return (double)(word(words, lane) >> 8) / 16777216.0; }

// From 53 bits.
DEVICE double wide_uniform(const Words& words, u32 lane) {
    return (double)(wide(word(words, 2 * lane), word(words, 2 * lane + 1)) >> 11) / 9007199254740992.0;
}

// Box-Muller in f32: the middle of each of 2^32 intervals is not 0, and dense near 0.
DEVICE double narrow_normal(const Words& words, u32 lane) {
    const float step = 1.0f / 4294967296.0f;
    u32 pair = lane / 2 * 2;
    float radius = sqrtf(-2.0f * logf((float)word(words, pair) * step + 0.5f * step));
    float angle = ((float)word(words, pair + 1) * step + 0.5f * step) * 6.28318530717958647692f;
    return (double)(radius * (lane % 2 == 0 ? cosf(angle) : sinf(angle)));
}

DEVICE double wide_normal(const Words& words, u32 lane) {
    double u = ((double)(wide(words.w[0], words.w[1]) >> 11) + 0.5) / 9007199254740992.0;
    double v = ((double)(wide(words.w[2], words.w[3]) >> 11) + 0.5) / 9007199254740992.0;
    double radius = sqrt(-2.0 * log(u));
    double angle = v * 6.28318530717958647692;
    return radius * (lane == 0 ? cos(angle) : sin(angle));
}

#endif

// The number of elements that a block of random bits gives, and how.
#undef ELEMENTS_OF_WORDS
#undef UNIFORM
#undef NORMAL
#ifdef T_IS_NARROW
#define ELEMENTS_OF_WORDS 4
#define UNIFORM narrow_uniform
#define NORMAL narrow_normal
#else
#define ELEMENTS_OF_WORDS 2
#define UNIFORM wide_uniform
#define NORMAL wide_normal
#endif

#undef ELEMENT
#define ELEMENT JOIN(element_of, SUFFIX)

// A uniform element of a number in [0, 1).
#undef UNIFORM_ELEMENT
#define UNIFORM_ELEMENT JOIN(uniform_element, SUFFIX)
DEVICE WIDE UNIFORM_ELEMENT(const Job& job, double drawn) {
#ifdef T_IS_FLOAT
    WIDE element = (WIDE)(job.c[0] + drawn * (job.c[1] - job.c[0]));
    // Rounding may reach the end, which is outside of the range.
    return element < (WIDE)job.c[1] ? element : (WIDE)job.c[2];
#else
    double whole = floor(job.c[0] + drawn * (job.c[1] - job.c[0]));
    whole = whole < job.c[2] ? whole : job.c[2];
    return job.function == NAMED("uniform_not_zero") ? (WIDE)(whole != 0.0) : INTEGER(whole);
#endif
}

// The element that lane `lane` of a block of random bits gives.
DEVICE T ELEMENT(const Job& job, const Words& words, u32 lane) {
    switch ((u32)job.function) {
        case NAMED("uniform"):
        case NAMED("uniform_not_zero"): return (T)UNIFORM_ELEMENT(job, UNIFORM(words, lane));
        case NAMED("normal"): return (T)(WIDE)(job.c[0] + job.c[1] * NORMAL(words, lane));
        case NAMED("bernoulli"): return (T)(UNIFORM(words, lane) < job.c[0] ? constant(job, 1, (WIDE)0) : (WIDE)0);
        default: return (T)undefined((WIDE)0);
    }
}

KERNEL(random) {
    const u32 N = AHEAD;
    handfuls<N>(job, [&](const Handful& few) {
        T x[N];
        Words words;
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            // A pack starts at the first element of a block.
            u32 lane = few.packed ? n % ELEMENTS_OF_WORDS : (u32)(few.at(n) % ELEMENTS_OF_WORDS);
            if (!few.packed || lane == 0) words = philox(job.k[0], job.k[1], few.at(n) / ELEMENTS_OF_WORDS);
            x[n] = ELEMENT(job, words, lane);
        }
        put<T>(job, 0, few, x);
    });
}
