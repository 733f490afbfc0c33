// Communicators of the emulated NCCL: the memory that ranks share, and operations in streams. See nccl.h.

namespace nccl {

// ncclResult_t.
constexpr int UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7;
// Operations, of which it has one: ncclSum.
constexpr int SUM = 0;
constexpr int MOST_RANKS = 16;
// Bytes that a rank publishes at a time.
constexpr u64 CHUNK = 64 << 10;
// How many polls a non-blocking call takes.
constexpr int POLLS = 3;
constexpr char ID_MAGIC[] = "emulated NCCL";

struct UniqueId {
    char bytes[128];
};

// The start of ncclConfig_t.
struct Config {
    size_t size;
    u32 magic, version;
    int blocking;
};

enum Kind : int { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, SEND, RECEIVE };

// The arguments that all ranks must pass alike. `root` is also the other rank of a message.
struct Call {
    Kind kind;
    int type, root;
    u64 count;

    bool is_message() const { return kind == SEND || kind == RECEIVE; }

    bool operator!=(const Call& other) const {
        return kind != other.kind || type != other.type || root != other.root || count != other.count;
    }
};

// The memory that a rank publishes.
struct Rank {
    std::atomic<u32> present, device, finalized;
    // How many meetings the rank has reached.
    std::atomic<u64> meetings;
    Call call;
    alignas(16) char data[CHUNK];
};

// A piece of a message that one rank has sent and another one has not received.
struct Mail {
    std::atomic<u32> is_full;
    u64 total;
    char data[CHUNK];
};

// The memory of all ranks. New memory is zero.
struct Shared {
    std::atomic<u32> size, attached;
    Rank ranks[MOST_RANKS];
    // By sender and receiver.
    Mail mail[MOST_RANKS][MOST_RANKS];
};

static u64 width(int type) {
    constexpr u64 WIDTHS[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? WIDTHS[type] : 0;
}

// The text of the last error in this process, which NCCL does not clear either.
static std::string last_error;
static std::mutex error_mutex;

static u32 failed(u32 status, std::string text) {
    Lock lock(error_mutex);
    last_error = std::move(text);
    return status;
}

// The result that EMULATED_NCCL_FAIL demands for the call with this name: `AllReduce:3:2` is result 2 for the third one.
// The result 7 (in progress) stays. The name `stream` stands for operations as they run.
static u32 demanded(const char* name) {
    static std::map<std::string, int> calls;
    static std::mutex calls_mutex;
    Lock lock(calls_mutex);
    const char* text = getenv("EMULATED_NCCL_FAIL");
    std::string call = std::string(name) + ":" + std::to_string(++calls[name]) + ":";
    if (!text || std::string(text).rfind(call, 0) != 0) return 0;
    return failed((u32)atoi(text + call.size()), "a failure on demand");
}

class Comm;

// A call that was not submitted yet.
struct Task {
    Comm* comm;
    Call call;
    u64 from, to;
    Stream* stream;
};

// A communicator. Destroyed ones stay in memory: streams may still refer to them.
class Comm {
    const int rank, size;
    const std::string name;
    Shared* const shared;
    std::mutex mutex;
    std::atomic<bool> aborted{false};
    std::atomic<u32> state{IN_PROGRESS};
    std::vector<Task> held;
    int polls = 0;
    bool finalizing = false;
    Stream* last_stream = nullptr;
    u64 last_number = 0;

    Rank& own() { return shared->ranks[rank]; }

    // Waits until all ranks have come here as often as this one; false if it was aborted.
    bool meet() {
        u64 number = ++own().meetings;
        for (int other = 0; other < size; ++other) {
            for (int turns = 0; shared->ranks[other].meetings < number; ++turns) {
                if (aborted) return false;
                turns < 200 ? (void)sched_yield() : (void)usleep(50);
            }
        }
        return true;
    }

    template <class T, class S> void sum(void* to, u64 count) {
        for (u64 i = 0; i < count; ++i) {
            S sum = (S)((const T*)shared->ranks[0].data)[i];
            for (int other = 1; other < size; ++other) sum += (S)((const T*)shared->ranks[other].data)[i];
            ((T*)to)[i] = (T)sum;
        }
    }

    void sum(int type, void* to, u64 count) {
        switch (type) {
        case 0: return sum<signed char, int>(to, count);
        case 1: return sum<u8, int>(to, count);
        case 2: return sum<i32, u32>(to, count);
        case 3: return sum<u32, u32>(to, count);
        case 4: return sum<i64, u64>(to, count);
        case 5: return sum<u64, u64>(to, count);
        case 6: return sum<f16, float>(to, count);
        case 7: return sum<float, float>(to, count);
        case 8: return sum<double, double>(to, count);
        case 9: return sum<bf16, float>(to, count);
        }
    }

    // Writes this rank's part of `count` elements from `start` on, which all ranks have published.
    void receive(const Task& task, int block, u64 start, u64 count) {
        const Call& call = task.call;
        u64 bytes = width(call.type);
        char* to = (char*)task.to + start * bytes;
        switch (call.kind) {
        case ALL_REDUCE: return sum(call.type, to, count);
        case REDUCE: return rank == call.root ? sum(call.type, to, count) : (void)0;
        case REDUCE_SCATTER: return rank == block ? sum(call.type, to, count) : (void)0;
        case BROADCAST: return (void)memcpy(to, shared->ranks[call.root].data, count * bytes);
        case ALL_GATHER:
            for (int other = 0; other < size; ++other) {
                memcpy(to + other * call.count * bytes, shared->ranks[other].data, count * bytes);
            }
            return;
        default: return;
        }
    }

    // Runs an operation in its stream.
    void run(const Task& task) {
        u32 status = demanded("stream");
        if (status == IN_PROGRESS) while (!aborted) usleep(50);
        if (status) state = status;
        if (aborted || (state != SUCCESS && state != IN_PROGRESS)) return;
        const Call& call = task.call;
        own().call = call;
        if (!meet()) return;
        for (int other = 0; other < size; ++other) {
            if (shared->ranks[other].call != call) {
                state = failed(INVALID_USAGE, "rank " + std::to_string(other) + " runs another operation");
                return;
            }
        }
        // Calls stay until all ranks have compared them.
        if (!meet()) return;
        u64 bytes = width(call.type), most = CHUNK / bytes;
        bool sends = call.kind != BROADCAST || rank == call.root;
        for (int block = 0; block < (call.kind == REDUCE_SCATTER ? size : 1); ++block) {
            for (u64 start = 0; start < call.count; start += most) {
                u64 count = std::min(most, call.count - start);
                const char* from = (const char*)task.from + (block * call.count + start) * bytes;
                if (sends) memcpy(own().data, from, count * bytes);
                if (!meet()) return;
                receive(task, block, start, count);
                if (!meet()) return;
            }
        }
    }

    // Moves a piece of a message of so many bytes; true if there was one to move.
    bool move_piece(const Task& task, u64 total, u64& done) {
        bool sends = task.call.kind == SEND;
        Mail& mail = sends ? shared->mail[rank][task.call.root] : shared->mail[task.call.root][rank];
        if ((mail.is_full != 0) == sends) return false;
        u64 bytes = std::min(CHUNK, total - done);
        if (sends) {
            mail.total = total;
            memcpy(mail.data, (const char*)task.from + done, bytes);
        } else if (mail.total != total) {
            state = failed(INVALID_USAGE, "rank " + std::to_string(task.call.root) + " sends a message of another length");
            return aborted = true;
        } else {
            memcpy((char*)task.to + done, mail.data, bytes);
        }
        done += bytes;
        return mail.is_full = sends, true;
    }

    // Runs messages in their stream, all at once. Those between two ranks keep their order.
    void run_messages(const std::vector<Task>& tasks) {
        std::vector<u64> done(tasks.size(), 0);
        auto total = [&](size_t n) { return tasks[n].call.count * width(tasks[n].call.type); };
        for (int turns = 0;; ++turns) {
            bool is_done = true;
            std::set<std::pair<int, int>> busy;
            for (size_t n = 0; n < tasks.size(); ++n) {
                if (done[n] == total(n)) continue;
                is_done = false;
                const Call& call = tasks[n].call;
                if (busy.insert({call.kind, call.root}).second && move_piece(tasks[n], total(n), done[n])) turns = 0;
            }
            if (is_done || aborted) return;
            turns < 200 ? (void)sched_yield() : (void)usleep(50);
        }
    }

    // Puts work after the previous work, whatever their streams.
    void put_in_stream(Stream* stream, Work work) {
        Stream* before = last_stream;
        u64 number = last_number;
        if (before && before != stream) stream->submit([=] { before->wait(number); });
        stream->submit(std::move(work));
        last_stream = stream;
        last_number = stream->last();
    }

    // Puts the calls of a group into their streams: first the collective operations, then all messages at once.
    void put_in_streams(const std::vector<Task>& tasks) {
        std::map<Stream*, std::vector<Task>> messages;
        for (auto& task : tasks) {
            if (task.call.is_message()) messages[task.stream].push_back(task);
            else put_in_stream(task.stream, [this, task] { run(task); });
        }
        for (auto& [stream, tasks] : messages) {
            std::vector<Task> copy = tasks;
            put_in_stream(stream, [this, copy] { run_messages(copy); });
        }
    }

    // Waits until all ranks have connected.
    void connect() {
        for (++shared->attached; shared->attached < (u32)size && !aborted;) usleep(100);
        // From now on the memory ends with the last process, however that ends.
        shm_unlink(name.c_str());
        if (aborted) return;
        for (int other = 0; other < size; ++other) {
            if (other == rank || shared->ranks[other].device != own().device) continue;
            int first = std::min(rank, other), second = std::max(rank, other);
            state = failed(INVALID_USAGE, "Duplicate GPU detected : rank " + std::to_string(first) + " and rank " +
                           std::to_string(second) + " both on CUDA device " + std::to_string(own().device - 1));
            return;
        }
        state = SUCCESS;
    }

public:
    const size_t context = current;
    const bool is_blocking;

    Comm(int rank, int size, std::string name, Shared* shared, bool is_blocking)
        : rank(rank), size(size), name(name), shared(shared), is_blocking(is_blocking) {}

    int ranks() const { return size; }

    // Takes this rank's place and connects in the background, or at once.
    u32 start() {
        u32 none = 0;
        if (!shared->size.compare_exchange_strong(none, size) && none != (u32)size) {
            return failed(INVALID_ARGUMENT, "another rank expects " + std::to_string(none) + " ranks");
        }
        if (own().present.exchange(1)) return failed(INVALID_USAGE, "two processes are rank " + std::to_string(rank));
        own().device = (u32)context;
        if (is_blocking) return connect(), state.load();
        std::thread([this] { connect(); }).detach();
        return IN_PROGRESS;
    }

    // Whether it accepts a call.
    u32 check() {
        if (state == SUCCESS && !finalizing) return SUCCESS;
        return failed(INVALID_ARGUMENT, "Attempt to use communicator before the previous operation returned ncclSuccess");
    }

    u32 poll() {
        Lock lock(mutex);
        if (state != IN_PROGRESS) return state;
        if (finalizing) {
            if (last_stream && !last_stream->has_passed(last_number)) return IN_PROGRESS;
            own().finalized = 1;
            for (int other = 0; other < size; ++other) if (!shared->ranks[other].finalized) return IN_PROGRESS;
            // The last operation may have set an error meanwhile.
            u32 expected = IN_PROGRESS;
            state.compare_exchange_strong(expected, SUCCESS);
        } else if (!held.empty() && --polls == 0) {
            // Before the tasks are in their streams, whose threads may set an error at once.
            state = SUCCESS;
            put_in_streams(held);
            held.clear();
            // The call was accepted, even if its operation has already failed.
            return SUCCESS;
        }
        return state;
    }

    // Records the result of a call, which a non-blocking communicator keeps.
    u32 answer(u32 status) {
        // A call in progress sets the state itself, maybe before this.
        if (!is_blocking && status != SUCCESS && status != IN_PROGRESS) state = status;
        return status;
    }

    u32 submit(std::vector<Task> tasks) {
        Lock lock(mutex);
        if (is_blocking) return put_in_streams(tasks), SUCCESS;
        held = std::move(tasks), polls = POLLS, state = IN_PROGRESS;
        return IN_PROGRESS;
    }

    // A call that never ends.
    u32 hang() { return state = IN_PROGRESS, IN_PROGRESS; }

    u32 finalize() {
        Lock lock(mutex);
        finalizing = true, state = IN_PROGRESS;
        return IN_PROGRESS;
    }

    void abort() {
        aborted = true;
        shm_unlink(name.c_str());
    }
};

}  // namespace nccl
