// A NCCL whose ranks are processes of this machine. They exchange data through shared memory, in the order of their
// streams. Sums are in rank order; those of 16-bit floats accumulate in 32 bits.
//
// It is as strict as NCCL about arguments, and stricter about differences between ranks, which NCCL does not notice. Like
// NCCL, it does not notice that a rank dies. A non-blocking communicator starts its calls when it is polled.

namespace nccl {

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
    if (call.count && call.kind != RECEIVE && !is_accessible(comm, from, sent * call.count, width(call.type))) return invalid("sendbuff");
    if (call.count && call.kind != SEND && !is_accessible(comm, to, received * call.count, width(call.type))) return invalid("recvbuff");
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
CALL(ncclSend, u64 from, size_t count, int type, int peer, nccl::Comm* comm, Stream* stream) {
    return nccl::call("Send", {comm, {nccl::SEND, type, peer, count}, from, 0, stream});
}
CALL(ncclRecv, u64 to, size_t count, int type, int peer, nccl::Comm* comm, Stream* stream) {
    return nccl::call("Recv", {comm, {nccl::RECEIVE, type, peer, count}, 0, to, stream});
}
