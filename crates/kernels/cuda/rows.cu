// Softmax, cross-entropy and layer normalization for floats: each row of k[0] elements has a team of k[1] threads, 32
// or a block. Exponentials subtract the row's maximum, so that nothing overflows. The job's shape is that of all rows;
// count is the number of rows.

#ifndef HIGHWATER_ROWS
#define HIGHWATER_ROWS

// The row of a thread's team and this thread's elements of it: `lane`, and every `size`-th after it below `end`. Teams
// without a row have no elements.
struct Team {
    u64 row, first, end;
    u32 lane, size;
};

DEVICE Team team_at(const Job& job, u64 turn) {
    u32 size = (u32)job.k[1];
    u64 row = turn * (BLOCK / size) + threadIdx.x / size;
    return Team{row, row * job.k[0], row < job.count ? job.k[0] : 0, threadIdx.x % size, size};
}

// The rows of this block's teams, which advance together because they share barriers.
#define EACH_TURN(turn) \
    for (u64 turn = blockIdx.x; turn * (BLOCK / job.k[1]) < job.count; turn += gridDim.x)

// body(few) for this thread's elements of a row: packs of neighbors if the job is packed, else up to AHEAD elements.
template <typename E, typename Body>
DEVICE void each_of(const Job& job, const Team& team, Body body) {
    const u64 N = Packed<E>::count;
    bool packed = job.packed != 0;
    u64 end = team.first + team.end, step = packed ? 1 : team.size;
    for (u64 e = team.lane * (packed ? N : 1); e < team.end; e += team.size * (packed ? N : (u64)AHEAD)) {
        body(Handful{team.first + e, step, end, packed});
    }
}

// use(x) for this thread's elements of a row, converted for computing.
template <typename E, typename Use>
DEVICE void each_value(const Job& job, const Team& team, Use use) {
    each_of<E>(job, team, [&](const Handful& few) {
        typename Computed<E>::type x[Packed<E>::count];
        value<E>(job, 0, few, x);
#pragma unroll
        for (u32 n = 0; n < Packed<E>::count; ++n) {
            if (few.has(n)) use(x[n]);
        }
    });
}

// The maximum of a row and the sum of exp(x - maximum).
template <typename E, typename Wide>
DEVICE void statistics(const Job& job, Wide* shared, const Team& team, Wide* largest, Wide* sum) {
    Wide own = (Wide)-INFINITY;
    each_value<E>(job, team, [&](Wide x) { own = larger(own, x); });
    *largest = join(shared, own, false, team.size);
    own = (Wide)0;
    each_value<E>(job, team, [&](Wide x) { own += exponential(x - *largest); });
    *sum = join(shared, own, true, team.size);
}

// The places of the weight and bias of elements: function bit 3 says that rows share them.
DEVICE Handful parameters_of(const Job& job, const Team& team, const Handful& few) {
    u64 row = job.function & 8 ? team.first : 0;
    return Handful{few.first - row, few.step, few.end - row, few.packed};
}

// A pair of values.
template <typename E>
struct Pair {
    E a, b;
};

template <typename E>
DEVICE Pair<E> sum_of(const Pair<E>& one, const Pair<E>& other) {
    return Pair<E>{one.a + other.a, one.b + other.b};
}

// The sums of y times the gradient and of the gradient, over every `step`-th of the elements number(e) to below
// number(to). In runs, as in reduce.cu.
template <typename E, typename Number>
DEVICE Pair<typename Computed<E>::type> normal_sums(const Job& job, u64 e, u64 to, u64 step, Number number) {
    typedef typename Computed<E>::type Wide;
    const u64 RUN = 256;
    const Wide* statistics = (const Wide*)job.also[0];
    auto term = [&](u64 i) {
        u64 row = quotient(i, job.k[0]);
        Wide g = value<E>(job, 1, i);
        Wide y = (value<E>(job, 0, i) - statistics[2 * row]) * statistics[2 * row + 1];
        return Pair<Wide>{y * g, g};
    };
    Pair<Wide> whole = {};
    while (e < to) {
        u64 end = to - e > RUN * step ? e + RUN * step : to;
        Pair<Wide> run = {};
        for (; e + (AHEAD - 1) * step < end; e += AHEAD * step) {
            Pair<Wide> terms[AHEAD];
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) terms[n] = term(number(e + n * step));
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) run = sum_of(run, terms[n]);
        }
        for (; e < end; e += step) run = sum_of(run, term(number(e)));
        whole = sum_of(whole, run);
    }
    return whole;
}

#endif

// function 1: the logarithm.
BLOCK_KERNEL(softmax, 4) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE largest, sum;
        statistics<T>(job, shared, team, &largest, &sum);
        WIDE log_sum = logarithm(sum);
        each_of<T>(job, team, [&](const Handful& few) {
            WIDE x[Packed<T>::count];
            value<T>(job, 0, few, x);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) {
                x[n] = job.function ? x[n] - largest - log_sum : exponential(x[n] - largest) / sum;
            }
            store<T>(job, 0, few, x);
        });
    }
}

// From the output s and the gradient g: s (g - sum g s), or g - exp(s) sum g for the logarithm.
BLOCK_KERNEL(softmax_grad, 4) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE own = (WIDE)0;
        each_of<T>(job, team, [&](const Handful& few) {
            WIDE s[Packed<T>::count], g[Packed<T>::count];
            value<T>(job, 0, few, s);
            value<T>(job, 1, few, g);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) {
                if (few.has(n)) own += job.function ? g[n] : g[n] * s[n];
            }
        });
        WIDE sum = join(shared, own, true, team.size);
        each_of<T>(job, team, [&](const Handful& few) {
            WIDE s[Packed<T>::count], g[Packed<T>::count];
            value<T>(job, 0, few, s);
            value<T>(job, 1, few, g);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) {
                s[n] = job.function ? g[n] - exponential(s[n]) * sum : s[n] * (g[n] - sum);
            }
            store<T>(job, 0, few, s);
        });
    }
}

// The targets are contiguous, at out[1], and were checked.
BLOCK_KERNEL(cross_entropy, 4) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE largest, sum;
        statistics<T>(job, shared, team, &largest, &sum);
        if (team.lane == 0 && team.end > 0) {
            u64 target = (u64)((const i64*)job.in[1].address)[team.row * job.in[1].strides[0]];
            store<T>(job, 0, team.row, logarithm(sum) - (value<T>(job, 0, team.first + target) - largest));
        }
    }
}

// (softmax(logits) - one_hot(targets)) grad, and 0 where the row's gradient is 0, even if the logits are infinite or
// NaN.
BLOCK_KERNEL(cross_entropy_grad, 4) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE largest, sum;
        statistics<T>(job, shared, team, &largest, &sum);
        u64 target = 0;
        WIDE scale = (WIDE)0;
        if (team.end > 0) {
            target = (u64)((const i64*)job.in[1].address)[team.row * job.in[1].strides[0]];
            scale = element_at<T>(job.in[2], team.row * job.in[2].strides[0]);
        }
        each_of<T>(job, team, [&](const Handful& few) {
            WIDE x[Packed<T>::count];
            value<T>(job, 0, few, x);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) {
                WIDE p = exponential(x[n] - largest) / sum;
                if (few.at(n) == team.first + target) p = p - (WIDE)1;
                x[n] = scale == (WIDE)0 ? (WIDE)0 : p * scale;
            }
            store<T>(job, 0, few, x);
        });
    }
}

// The losses, out[1], with label smoothing c[0]. Their gradients times the factors, in[2], replace the logits, which are
// in[0] and out[0]. The loss and the gradient are 0 where the factor is 0. A thread reads each logit before it writes it.
BLOCK_KERNEL(cross_entropy_in_place, 4) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE largest, sum;
        statistics<T>(job, shared, team, &largest, &sum);
        WIDE smoothing = (WIDE)job.c[0];
        WIDE each = smoothing / (WIDE)job.k[0], mean = (WIDE)0;
        if (smoothing != (WIDE)0) {
            WIDE own = (WIDE)0;
            each_value<T>(job, team, [&](WIDE x) { own += x - largest; });
            mean = each * join(shared, own, true, team.size);
        }
        u64 target = 0;
        WIDE factor = (WIDE)0;
        if (team.end > 0) {
            target = (u64)((const i64*)job.in[1].address)[team.row * job.in[1].strides[0]];
            factor = element_at<T>(job.in[2], team.row * job.in[2].strides[0]);
        }
        each_of<T>(job, team, [&](const Handful& few) {
            WIDE x[Packed<T>::count];
            value<T>(job, 0, few, x);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) {
                WIDE p = exponential(x[n] - largest) / sum - each;
                if (few.has(n) && few.at(n) == team.first + target) {
                    WIDE sharp = (WIDE)1 - smoothing;
                    p = p - sharp;
                    WIDE loss = logarithm(sum) - sharp * (x[n] - largest) - mean;
                    store<T>(job, 1, team.row, factor == (WIDE)0 ? (WIDE)0 : loss);
                }
                x[n] = factor == (WIDE)0 ? (WIDE)0 : p * factor;
            }
            store<T>(job, 0, few, x);
        });
    }
}

// x normalized to mean 0 (function bit 0) and mean square 1, times the weight (bit 1), plus the bias (bit 2); in = [x,
// weight, bias], c[0] = epsilon; out[1] receives the mean and the scale of each row. Bit 3: weight and bias are the same
// for each row, and contiguous.
BLOCK_KERNEL(layer_norm, 4) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE own = (WIDE)0;
        WIDE mean = (WIDE)0;
        if (job.function & 1) {
            // The differences from an element are small, and so is their rounding error, however large the mean is.
            WIDE first = team.end > 0 ? value<T>(job, 0, team.first) : (WIDE)0;
            each_value<T>(job, team, [&](WIDE x) { own += x - first; });
            mean = first + join(shared, own, true, team.size) / (WIDE)job.k[0];
        }
        own = (WIDE)0;
        each_value<T>(job, team, [&](WIDE x) {
            x = x - mean;
            own += x * x;
        });
        WIDE scale = (WIDE)1 / root(join(shared, own, true, team.size) / (WIDE)job.k[0] + constant(job, 0, (WIDE)0));
        each_of<T>(job, team, [&](const Handful& few) {
            WIDE x[Packed<T>::count], w[Packed<T>::count];
            value<T>(job, 0, few, x);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) x[n] = (x[n] - mean) * scale;
            Handful parameters = parameters_of(job, team, few);
            if (job.function & 2) {
                value<T>(job, 1, parameters, w);
#pragma unroll
                for (u32 n = 0; n < Packed<T>::count; ++n) x[n] = x[n] * w[n];
            }
            if (job.function & 4) {
                value<T>(job, 2, parameters, w);
#pragma unroll
                for (u32 n = 0; n < Packed<T>::count; ++n) x[n] = x[n] + w[n];
            }
            store<T>(job, 0, few, x);
        });
        if (team.lane == 0 && team.end > 0) {
            store<T>(job, 1, 2 * team.row, mean);
            store<T>(job, 1, 2 * team.row + 1, scale);
        }
    }
}

// scale (h - mean(h) - y mean(h y)), where h is the gradient times the weight and y the normalized x; in = [x, weight,
// gradient], also[0] = the statistics; function bits as above.
BLOCK_KERNEL(layer_norm_grad, 4) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        const WIDE* statistics = (const WIDE*)job.also[0] + (team.end > 0 ? 2 * team.row : 0);
        WIDE mean = statistics[0], scale = statistics[1];
        // The normalized x, and the gradient times the weight.
        auto load_both = [&](const Handful& few, WIDE(&y)[Packed<T>::count], WIDE(&h)[Packed<T>::count]) {
            value<T>(job, 2, few, h);
            if (job.function & 2) {
                value<T>(job, 1, parameters_of(job, team, few), y);
#pragma unroll
                for (u32 n = 0; n < Packed<T>::count; ++n) h[n] = h[n] * y[n];
            }
            value<T>(job, 0, few, y);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) y[n] = (y[n] - mean) * scale;
        };
        WIDE sum = (WIDE)0, along = (WIDE)0;
        each_of<T>(job, team, [&](const Handful& few) {
            WIDE y[Packed<T>::count], h[Packed<T>::count];
            load_both(few, y, h);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) {
                if (!few.has(n)) continue;
                sum += h[n];
                along += h[n] * y[n];
            }
        });
        sum = join(shared, sum, true, team.size) / (WIDE)job.k[0];
        along = join(shared, along, true, team.size) / (WIDE)job.k[0];
        WIDE shift = job.function & 1 ? sum : (WIDE)0;
        each_of<T>(job, team, [&](const Handful& few) {
            WIDE y[Packed<T>::count], h[Packed<T>::count];
            load_both(few, y, h);
#pragma unroll
            for (u32 n = 0; n < Packed<T>::count; ++n) h[n] = scale * (h[n] - shift - y[n] * along);
            store<T>(job, 0, few, h);
        });
    }
}

// The sums of y times the gradient and of the gradient, over rows; in = [x, gradient], also[0] = the statistics.
// Elements are indexed [rows, parameters, places]: count = parameters, k = [elements with the same statistics, places,
// rows, rows of a slab, slabs], function 1: of the gradient too. The sums of slabs follow each other.

// One block per slab and 32 neighboring parameters of one place.
BLOCK_KERNEL(layer_norm_sums, 4) {
    SHARED Pair<WIDE> folded[8][32];
    u64 tiles = (job.count + 31) / 32;
    u32 column = threadIdx.x % 32, row = threadIdx.x / 32;
    for (u64 n = blockIdx.x; n < tiles * job.k[4]; n += gridDim.x) {
        u64 slab = quotient(n, tiles), o = (n - slab * tiles) * 32 + column;
        u64 from = slab * job.k[3], to = from + job.k[3] < job.k[2] ? from + job.k[3] : job.k[2];
        if (o < job.count) {
            folded[row][column] = normal_sums<T>(job, from + row, to, 8, [&](u64 e) { return e * job.count + o; });
        }
        __syncthreads();
        if (row == 0 && o < job.count) {
            Pair<WIDE> sum = folded[0][column];
            for (u32 other = 1; other < 8; ++other) {
                sum = sum_of(sum, folded[other][column]);
            }
            store<T>(job, 0, slab * job.count + o, sum.a);
            if (job.function) store<T>(job, 1, slab * job.count + o, sum.b);
        }
        __syncthreads();
    }
}

// One block per parameter of several places.
BLOCK_KERNEL(layer_norm_sums_apart, 4) {
    SHARED WIDE shared[BLOCK / 32];
    for (u64 o = blockIdx.x; o < job.count; o += gridDim.x) {
        Pair<WIDE> own = normal_sums<T>(job, threadIdx.x, job.k[2] * job.k[1], BLOCK, [&](u64 e) {
            u64 row = quotient(e, job.k[1]);
            return (row * job.count + o) * job.k[1] + (e - row * job.k[1]);
        });
        WIDE weight = join(shared, own.a, true), bias = join(shared, own.b, true);
        if (threadIdx.x == 0) {
            store<T>(job, 0, o, weight);
            if (job.function) store<T>(job, 1, o, bias);
        }
    }
}
