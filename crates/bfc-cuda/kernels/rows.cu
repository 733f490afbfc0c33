// Softmax and what is made of it, for floats: for each row of k[0] elements a team of k[1] threads, 32 or a block. Every row is
// shifted by its largest element before exp, so that nothing overflows. The job's shape is that of the rows with their elements,
// count the number of rows.

#ifndef HIGHWATER_ROWS
#define HIGHWATER_ROWS

// The row of a thread's team, and which of the row's elements are this thread's: `lane`, and every `size`-th after it below
// `end`. Of teams for which there is no row, none are.
struct Team {
    u64 row, first, end;
    u32 lane, size;
};

DEVICE Team team_at(const Job& job, u64 turn) {
    u32 size = (u32)job.k[1];
    u64 row = turn * (BLOCK / size) + threadIdx.x / size;
    return Team{row, row * job.k[0], row < job.count ? job.k[0] : 0, threadIdx.x % size, size};
}

// Every turn of this block's teams: they go from row to row together, as they wait for each other.
#define EACH_TURN(turn) \
    for (u64 turn = blockIdx.x; turn * (BLOCK / job.k[1]) < job.count; turn += gridDim.x)
#define EACH_OF(team, e) for (u64 e = team.lane; e < team.end; e += team.size)

// The largest of a row, and the sum of exp of what is below it.
template <typename E, typename Wide>
DEVICE void statistics(const Job& job, Wide* shared, const Team& team, Wide* largest, Wide* sum) {
    Wide own = (Wide)-INFINITY;
    EACH_OF(team, e) { own = larger(own, value<E>(job, 0, team.first + e)); }
    *largest = join(shared, own, false, team.size);
    own = (Wide)0;
    EACH_OF(team, e) { own += exponential(value<E>(job, 0, team.first + e) - *largest); }
    *sum = join(shared, own, true, team.size);
}

#endif

// function 1: the logarithm.
BLOCK_KERNEL(softmax) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE largest, sum;
        statistics<T>(job, shared, team, &largest, &sum);
        WIDE log_sum = logarithm(sum);
        EACH_OF(team, e) {
            WIDE x = value<T>(job, 0, team.first + e) - largest;
            store<T>(job, 0, team.first + e, job.function ? x - log_sum : exponential(x) / sum);
        }
    }
}

// From the output s and the gradient g: s (g - sum g s), or g - exp(s) sum g for the logarithm.
BLOCK_KERNEL(softmax_grad) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE own = (WIDE)0;
        EACH_OF(team, e) {
            WIDE g = value<T>(job, 1, team.first + e);
            own += job.function ? g : g * value<T>(job, 0, team.first + e);
        }
        WIDE sum = join(shared, own, true, team.size);
        EACH_OF(team, e) {
            WIDE s = value<T>(job, 0, team.first + e);
            WIDE g = value<T>(job, 1, team.first + e);
            store<T>(job, 0, team.first + e, job.function ? g - exponential(s) * sum : s * (g - sum));
        }
    }
}

// The targets are contiguous, at out[1], and were checked.
BLOCK_KERNEL(cross_entropy) {
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

// (softmax(logits) - one_hot(targets)) grad, and 0 where the row's gradient is 0, whatever its logits are.
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
        EACH_OF(team, e) {
            WIDE p = exponential(value<T>(job, 0, team.first + e) - largest) / sum;
            store<T>(job, 0, team.first + e, scale == (WIDE)0 ? (WIDE)0 : (e == target ? p - (WIDE)1 : p) * scale);
        }
    }
}

// x brought to mean 0 (function bit 0) and mean square 1, then times the weight (bit 1) and plus the bias (bit 2); in = [x,
// weight, bias], c[0] what is added to the mean square; out[1] takes the mean and the scale of each row.
BLOCK_KERNEL(layer_norm) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        WIDE own = (WIDE)0;
        WIDE mean = (WIDE)0;
        if (job.function & 1) {
            EACH_OF(team, e) {
                own += value<T>(job, 0, team.first + e);
            }
            mean = join(shared, own, true, team.size) / (WIDE)job.k[0];
        }
        own = (WIDE)0;
        EACH_OF(team, e) {
            WIDE x = value<T>(job, 0, team.first + e) - mean;
            own += x * x;
        }
        WIDE scale = (WIDE)1 / root(join(shared, own, true, team.size) / (WIDE)job.k[0] + constant(job, 0, (WIDE)0));
        EACH_OF(team, e) {
            WIDE y = (value<T>(job, 0, team.first + e) - mean) * scale;
            if (job.function & 2) y = y * value<T>(job, 1, team.first + e);
            if (job.function & 4) y = y + value<T>(job, 2, team.first + e);
            store<T>(job, 0, team.first + e, y);
        }
        if (team.lane == 0 && team.end > 0) {
            store<T>(job, 1, 2 * team.row, mean);
            store<T>(job, 1, 2 * team.row + 1, scale);
        }
    }
}

// scale (h - mean(h) - y mean(h y)) with h the gradient times the weight and y what was normalised; in = [x, weight,
// gradient], also[0] the statistics; function bits as above.
BLOCK_KERNEL(layer_norm_grad) {
    SHARED WIDE shared[BLOCK / 32];
    EACH_TURN(turn) {
        Team team = team_at(job, turn);
        const WIDE* statistics = (const WIDE*)job.also[0] + (team.end > 0 ? 2 * team.row : 0);
        WIDE mean = statistics[0], scale = statistics[1];
        WIDE sum = (WIDE)0, along = (WIDE)0;
        EACH_OF(team, e) {
            WIDE h = value<T>(job, 2, team.first + e);
            if (job.function & 2) h = h * value<T>(job, 1, team.first + e);
            sum += h;
            along += h * ((value<T>(job, 0, team.first + e) - mean) * scale);
        }
        sum = join(shared, sum, true, team.size) / (WIDE)job.k[0];
        along = join(shared, along, true, team.size) / (WIDE)job.k[0];
        WIDE shift = job.function & 1 ? sum : (WIDE)0;
        EACH_OF(team, e) {
            WIDE h = value<T>(job, 2, team.first + e);
            if (job.function & 2) h = h * value<T>(job, 1, team.first + e);
            WIDE y = (value<T>(job, 0, team.first + e) - mean) * scale;
            store<T>(job, 0, team.first + e, scale * (h - shift - y * along));
        }
    }
}

// y times the gradient, whose sum over the rows is the weight's gradient; in = [x, gradient], count elements.
KERNEL(layer_norm_terms) {
    EACH(i) {
        u64 row = quotient(i, job.k[0]);
        WIDE mean = ((const WIDE*)job.also[0])[2 * row], scale = ((const WIDE*)job.also[0])[2 * row + 1];
        store<T>(job, 0, i, (value<T>(job, 0, i) - mean) * scale * value<T>(job, 1, i));
    }
}
