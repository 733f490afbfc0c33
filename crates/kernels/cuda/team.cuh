// Threads that share a row.

// Reads a value of another thread of the warp. All threads of a block must call this together.
template <typename E>
DEVICE E across(E own, u32 mask) {
#ifdef __CUDACC_RTC__
    return __shfl_xor_sync(0xffffffffu, own, mask);
#else
    SHARED E all[BLOCK];
    all[threadIdx.x] = own;
    __syncthreads();
    E other = all[threadIdx.x ^ mask];
    __syncthreads();
    return other;
#endif
}

template <typename E>
DEVICE E joined(E a, E b, bool sum) { return sum ? a + b : larger(a, b); }

// Reduces the values of a team, 32 threads or the block. Every thread gets the result; all teams must call this
// together.
template <typename E>
DEVICE E join(E* shared, E own, bool sum, u32 team = BLOCK) {
    for (u32 mask = 16; mask > 0; mask /= 2) {
        own = joined(own, across(own, mask), sum);
    }
    if (team == 32) return own;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
    __syncthreads();
    own = shared[0];
    for (u32 other = 1; other < BLOCK / 32; ++other) {
        own = joined(own, shared[other], sum);
    }
    __syncthreads();
    return own;
}
