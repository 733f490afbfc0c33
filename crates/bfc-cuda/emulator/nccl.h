// A NCCL whose ranks are processes of this machine. They exchange data through shared memory, in the order of their
// streams. Sums are in rank order; those of 16-bit floats accumulate in 32 bits.
//
// It is as strict as NCCL about arguments, and stricter about differences between ranks, which NCCL does not notice. Like
// NCCL, it does not notice that a rank dies. A non-blocking communicator starts its calls when it is polled.

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

enum Kind : int { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE };

// The arguments that all ranks must pass alike.
struct Call {
    Kind kind;
    int type, root;
    u64 count;

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

// The memory of all ranks. New memory is zero.
struct Shared {
    std::atomic<u32> size, attached;
    Rank ranks[MOST_RANKS];
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

    // Puts an operation after the previous one, whatever their streams.
    void put_in_stream(const Task& task) {
        Stream *before = last_stream, *stream = task.stream;
        u64 number = last_number;
        if (before && before != stream) stream->submit([=] { before->wait(number); });
        stream->submit([this, task] { run(task); });
        last_stream = stream;
        last_number = stream->last();
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
            state = SUCCESS;
        } else if (!held.empty() && --polls == 0) {
            for (auto& task : held) put_in_stream(task);
            held.clear();
            state = SUCCESS;
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
        if (is_blocking) {
            for (auto& task : tasks) put_in_stream(task);
            return SUCCESS;
        }
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

// The group of this thread.
static thread_local int depth = 0;
static thread_local std::vector<Task> grouped;
static thread_local u32 group_status = SUCCESS;

// Whether the device of the communicator may access the memory.
static bool is_accessible(Comm* comm, u64 address, u64 count, u64 bytes) {
    size_t before = current;
    current = comm->context;
    u32 status = count > ~0ULL / bytes || address == 0 ? INVALID_VALUE : check_access(address, count * bytes);
    current = before;
    return status == SUCCESS;
}

static u32 check(const char* name, const Task& task, int op) {
    auto [comm, call, from, to, stream] = task;
    if (u32 status = comm->check()) return status;
    auto invalid = [&](const char* what) { return failed(INVALID_ARGUMENT, std::string(name) + " : invalid " + what); };
    if (!width(call.type)) return invalid("datatype");
    if (op != SUM) return invalid("reduction operation, or one that the emulator does not have");
    if (call.root < 0 || call.root >= comm->ranks()) return invalid("root");
    u64 ranks = (u64)comm->ranks();
    u64 sent = call.kind == REDUCE_SCATTER ? ranks : 1, received = call.kind == ALL_GATHER ? ranks : 1;
    if (call.count > ~0ULL / MOST_RANKS) return invalid("count");
    if (call.count && !is_accessible(comm, from, sent * call.count, width(call.type))) return invalid("sendbuff");
    if (call.count && !is_accessible(comm, to, received * call.count, width(call.type))) return invalid("recvbuff");
    if (!is_live(stream) || stream->context != comm->context) return failed(UNHANDLED_CUDA_ERROR, "invalid resource handle");
    Lock lock(::mutex);
    return captures.count(stream) ? failed(INVALID_USAGE, "the emulator does not capture NCCL's calls") : SUCCESS;
}

static u32 call(const char* name, Task task, int op = SUM) {
    if (!is_live(task.comm)) return failed(INVALID_ARGUMENT, std::string(name) + " : invalid communicator");
    u32 status = check(name, task, op);
    if (!status) status = demanded(name);
    if (status == IN_PROGRESS) return task.comm->hang();
    if (status) return group_status = status, task.comm->answer(status);
    if (depth == 0) return task.comm->submit({task});
    grouped.push_back(task);
    return SUCCESS;
}

}  // namespace nccl

CALL(ncclGetVersion, int* version) { return version ? (*version = 23203, SUCCESS) : (u32)nccl::INVALID_ARGUMENT; }

extern "C" const char* ncclGetErrorString(int code) {
    const char* const TEXTS[] = {"no error",
                                 "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                 "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                 "internal error - please report this issue to the NCCL developers",
                                 "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                 "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                 "remote process exited or there was a network error",
                                 "NCCL operation in progress",
                                 "timeout"};
    return code >= 0 && code < 9 ? TEXTS[code] : "unknown result code";
}

extern "C" const char* ncclGetLastError(void*) {
    static thread_local std::string text;
    Lock lock(nccl::error_mutex);
    return (text = nccl::last_error).c_str();
}

CALL(ncclGetUniqueId, nccl::UniqueId* id) {
    if (!id) return nccl::INVALID_ARGUMENT;
    if (u32 status = nccl::demanded("GetUniqueId")) return status;
    *id = {};
    memcpy(id->bytes, nccl::ID_MAGIC, sizeof nccl::ID_MAGIC);
    return getentropy(id->bytes + 112, 16) == 0 ? SUCCESS : (u32)nccl::SYSTEM_ERROR;
}

CALL(ncclCommInitRankConfig, nccl::Comm** comm, int size, nccl::UniqueId id, int rank, const nccl::Config* config) {
    using namespace nccl;
    if (!comm) return INVALID_ARGUMENT;
    *comm = nullptr;
    if (u32 status = demanded("CommInitRankConfig")) return status;
    if (::usable()) return failed(UNHANDLED_CUDA_ERROR, "no usable device is current");
    if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size) return failed(INVALID_ARGUMENT, "invalid rank");
    if (memcmp(id.bytes, ID_MAGIC, sizeof ID_MAGIC) != 0) return failed(INVALID_ARGUMENT, "invalid id");
    if (config && (config->magic != 0xcafebeef || config->version < 21400 || config->size < sizeof *config)) {
        return failed(INVALID_ARGUMENT, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    std::string name = "/highwater-nccl-";
    for (char byte : std::string(id.bytes + 112, 16)) name += "0123456789abcdef"[byte >> 4 & 15], name += "0123456789abcdef"[byte & 15];
    int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) return failed(SYSTEM_ERROR, "no shared memory");
    void* memory = ftruncate(file, sizeof(Shared)) ? MAP_FAILED
                                                   : mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return shm_unlink(name.c_str()), failed(SYSTEM_ERROR, "no shared memory");
    *comm = created(new Comm(rank, size, name, (Shared*)memory, !config || config->blocking != 0));
    return (*comm)->answer((*comm)->start());
}

CALL(ncclCommGetAsyncError, nccl::Comm* comm, u32* status) {
    if (!is_live(comm) || !status) return nccl::INVALID_ARGUMENT;
    return *status = comm->poll(), SUCCESS;
}

CALL(ncclCommFinalize, nccl::Comm* comm) {
    if (!is_live(comm)) return nccl::INVALID_ARGUMENT;
    if (u32 status = comm->check()) return comm->answer(status);
    return comm->finalize();
}

CALL(ncclCommDestroy, nccl::Comm* comm) {
    if (!ended(comm)) return nccl::INVALID_ARGUMENT;
    return comm->abort(), SUCCESS;
}

CALL(ncclCommAbort, nccl::Comm* comm) {
    if (!ended(comm)) return nccl::INVALID_ARGUMENT;
    return comm->abort(), SUCCESS;
}

CALL(ncclCommMemStats, nccl::Comm* comm, int which, u64* bytes) {
    if (!is_live(comm) || which != 3 || !bytes) return nccl::INVALID_ARGUMENT;
    return *bytes = nccl::CHUNK * comm->ranks(), SUCCESS;
}

CALL(ncclGroupStart) { return ++nccl::depth, SUCCESS; }
CALL(ncclGroupEnd) {
    using namespace nccl;
    if (depth == 0) return failed(INVALID_USAGE, "ncclGroupEnd: not in a group call.");
    if (--depth > 0) return SUCCESS;
    std::vector<Task> tasks = std::move(grouped);
    u32 status = group_status;
    grouped.clear(), group_status = SUCCESS;
    if (!status) status = demanded("GroupEnd");
    std::map<Comm*, std::vector<Task>> by_comm;
    for (auto& task : tasks) by_comm[task.comm].push_back(task);
    for (auto& [comm, tasks] : by_comm) {
        u32 result = status ? comm->answer(status) : comm->submit(tasks);
        if (result) status = result;
    }
    return status;
}

CALL(ncclAllReduce, u64 from, u64 to, size_t count, int type, int op, nccl::Comm* comm, Stream* stream) {
    return nccl::call("AllReduce", {comm, {nccl::ALL_REDUCE, type, 0, count}, from, to, stream}, op);
}
CALL(ncclReduceScatter, u64 from, u64 to, size_t count, int type, int op, nccl::Comm* comm, Stream* stream) {
    return nccl::call("ReduceScatter", {comm, {nccl::REDUCE_SCATTER, type, 0, count}, from, to, stream}, op);
}
CALL(ncclAllGather, u64 from, u64 to, size_t count, int type, nccl::Comm* comm, Stream* stream) {
    return nccl::call("AllGather", {comm, {nccl::ALL_GATHER, type, 0, count}, from, to, stream});
}
CALL(ncclBroadcast, u64 from, u64 to, size_t count, int type, int root, nccl::Comm* comm, Stream* stream) {
    return nccl::call("Broadcast", {comm, {nccl::BROADCAST, type, root, count}, from, to, stream});
}
CALL(ncclReduce, u64 from, u64 to, size_t count, int type, int op, int root, nccl::Comm* comm, Stream* stream) {
    return nccl::call("Reduce", {comm, {nccl::REDUCE, type, root, count}, from, to, stream}, op);
}
