// Copies, kernels, captures and graphs: work for streams.

constexpr char CODE[] = "code of the emulated compiler";
// CU_STREAM_CAPTURE_MODE_RELAXED.
constexpr u32 RELAXED = 2;

struct Module {};

struct Node {
    // The kernel, unless the node is a captured command or a child graph.
    void* function;
    std::vector<Work> work;
};

// A chain of nodes.
struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;

    std::vector<Work> work() const {
        std::vector<Work> all;
        for (auto& node : nodes) all.insert(all.end(), node->work.begin(), node->work.end());
        return all;
    }
};

// A graph to launch. Its nodes have the handles of the original graph's nodes.
struct Executable {
    std::vector<std::pair<Node*, Node>> nodes;
};

static std::mutex kernel_turn;

// Submits work to a stream, or captures it.
static u32 submit(Stream* stream, Work work) {
    std::unique_lock<std::mutex> lock(mutex);
    auto capture = captures.find(stream);
    if (capture != captures.end()) {
        if (!capture->second.is_valid) return CAPTURE_INVALIDATED;
        capture->second.graph->nodes.emplace_back(new Node{nullptr, {std::move(work)}});
        return SUCCESS;
    }
    lock.unlock();
    return stream->submit(std::move(work)), SUCCESS;
}

CALL(cuMemcpyHtoDAsync_v2, u64 to, const char* from, size_t bytes, Stream* stream) {
    if (u32 status = usable(stream)) return status;
    if (u32 status = check_access(to, bytes)) return status;
    if (is_pinned((u64)from, bytes)) return submit(stream, [=] { memcpy((void*)to, from, bytes); });
    // The driver copies pageable memory at once.
    std::vector<char> copy(from, from + bytes);
    return submit(stream, [=] { memcpy((void*)to, copy.data(), bytes); });
}
CALL(cuMemcpyDtoHAsync_v2, void* to, u64 from, size_t bytes, Stream* stream) {
    if (u32 status = usable(stream)) return status;
    if (u32 status = check_access(from, bytes)) return status;
    if (u32 status = submit(stream, [=] { memcpy(to, (void*)from, bytes); })) return status;
    // The driver copies to pageable memory before it returns.
    if (!is_pinned((u64)to, bytes)) stream->wait(stream->last());
    return SUCCESS;
}
CALL(cuMemsetD8Async, u64 to, u8 value, size_t bytes, Stream* stream) {
    if (u32 status = usable(stream)) return status;
    if (u32 status = check_access(to, bytes)) return status;
    return submit(stream, [=] { memset((void*)to, value, bytes); });
}
CALL(cuMemcpyDtoDAsync_v2, u64 to, u64 from, size_t bytes, Stream* stream) {
    if (u32 status = usable(stream)) return status;
    if (u32 status = check_access(to, bytes)) return status;
    if (u32 status = check_access(from, bytes)) return status;
    return submit(stream, [=] { memmove((void*)to, (void*)from, bytes); });
}

// A function of one of the emulator's libraries, whose path is in EMULATED_<library>.
static void* library_function(const char* library, const char* name) {
    const char* path = getenv((std::string("EMULATED_") + library).c_str());
    void* opened = path ? dlopen(path, RTLD_NOW) : nullptr;
    return opened ? dlsym(opened, name) : nullptr;
}

// Whether the device has memory for code and libraries, which are outside of the pools.
static bool has_code_memory() {
    Lock lock(mutex);
    return setting("CODE_BYTES") <= total_bytes() - used[current];
}

CALL(cuModuleLoadData, Module** module, const void* image) {
    if (u32 status = usable()) return status;
    if (!has_code_memory()) return OUT_OF_MEMORY;
    if (memcmp(image, CODE, sizeof CODE) != 0) return INVALID_IMAGE;
    return *module = created(new Module), SUCCESS;
}
CALL(cuModuleUnload, Module* module) {
    if (!ended(module)) return INVALID_HANDLE;
    return delete module, SUCCESS;
}
CALL(cuModuleGetFunction, void** function, Module* module, const char* name) {
    if (!is_live(module)) return INVALID_HANDLE;
    if (strcmp(name, "saxpy") == 0) return *function = (void*)saxpy, SUCCESS;
    // A device that computes wrong sums.
    if (setting("WRONG_SUMS") && strcmp(name, "check_sum_f32") == 0) name = "check_fill_f32";
    return *function = library_function("KERNELS", name), *function ? SUCCESS : NOT_FOUND;
}

// A launch of a kernel: CUDA_KERNEL_NODE_PARAMS.
struct Launch {
    void* function;
    u32 grid[3], block[3], shared_bytes;
    void** arguments;
    void *extra, *kernel, *context;

    // Checks the launch; returns its work.
    u32 check(Work& work) const {
        if (function == (void*)saxpy && arguments) return check_saxpy(arguments, work);
        const u32 expected[] = {grid[0], 1, 1, BLOCK, 1, 1, 0};
        if (grid[0] == 0 || memcmp(grid, expected, sizeof expected) != 0) return INVALID_VALUE;
        if (!function || extra || kernel || context) return INVALID_VALUE;
        Job job = *(const Job*)arguments[0];
        std::vector<u64> addresses(job.also, job.also + 4);
        for (const JobInput& in : job.in) addresses.push_back(in.address);
        for (const JobOutput& out : job.out) addresses.push_back(out.address);
        JobTable table = arguments[1] ? *(const JobTable*)arguments[1] : JobTable();
        for (const JobRow& row : table.rows) {
            addresses.push_back(row.in);
            addresses.insert(addresses.end(), row.out, row.out + 4);
        }
        for (u64 address : addresses) if (u32 status = address ? check_access(address, 1) : SUCCESS) return status;
        // Few blocks suffice: kernels loop until no element is left.
        u32 blocks = grid[0] < 3 ? grid[0] : 3;
        auto run = (void (*)(u32, const Job*, const JobTable*))function;
        work = [=] {
            Lock turn(kernel_turn);
            run(blocks, &job, &table);
        };
        return SUCCESS;
    }
};

CALL(cuLaunchKernel, void* function, u32 x, u32 y, u32 z, u32 threads, u32 threads_y, u32 threads_z, u32 shared, Stream* stream,
     void** arguments, void** extra) {
    Launch launch = {function, {x, y, z}, {threads, threads_y, threads_z}, shared, arguments, extra, nullptr, nullptr};
    Work work;
    if (u32 status = usable(stream)) return status;
    if (u32 status = launch.check(work)) return status;
    return submit(stream, work);
}

CALL(cuStreamBeginCapture_v2, Stream* stream, u32 mode) {
    if (u32 status = usable(stream)) return status;
    static u64 interrupted = 0;
    Graph* graph = created(new Graph);
    std::unique_lock<std::mutex> lock(mutex);
    bool is_valid = interrupted >= setting("INTERRUPTED_CAPTURES");
    interrupted += !is_valid;
    if (mode != RELAXED || !captures.insert({stream, {graph, is_valid}}).second) return INVALID_VALUE;
    lock.unlock();
    // Other threads have time to interrupt the capture.
    return usleep(100), SUCCESS;
}
CALL(cuStreamEndCapture, Stream* stream, Graph** graph) {
    Lock lock(mutex);
    auto found = captures.find(stream);
    if (found == captures.end()) return INVALID_VALUE;
    Capture capture = found->second;
    captures.erase(found);
    *graph = capture.is_valid ? capture.graph : nullptr;
    if (capture.is_valid) return SUCCESS;
    live<Graph>.erase(capture.graph);
    return delete capture.graph, CAPTURE_INVALIDATED;
}

CALL(cuGraphCreate, Graph** graph, u32) {
    if (setting("NO_GRAPHS")) return NOT_SUPPORTED;
    return *graph = created(new Graph), SUCCESS;
}
CALL(cuGraphDestroy, Graph* graph) {
    if (!ended(graph)) return INVALID_HANDLE;
    return delete graph, SUCCESS;
}

// Adds a node after the last one, on which alone it must depend.
static u32 add_node(Node** node, Graph* graph, Node* const* after, size_t count, Node added) {
    if (!is_live(graph)) return INVALID_HANDLE;
    auto& nodes = graph->nodes;
    if (count != !nodes.empty() || (count && *after != nodes.back().get())) return INVALID_VALUE;
    nodes.emplace_back(*node = new Node(std::move(added)));
    return SUCCESS;
}

CALL(cuGraphAddKernelNode_v2, Node** node, Graph* graph, Node* const* after, size_t count, const Launch* launch) {
    Work work;
    if (u32 status = launch->check(work)) return status;
    return add_node(node, graph, after, count, {launch->function, {work}});
}
CALL(cuGraphAddChildGraphNode, Node** node, Graph* graph, Node* const* after, size_t count, Graph* child) {
    if (!is_live(child)) return INVALID_HANDLE;
    return add_node(node, graph, after, count, {nullptr, child->work()});
}

CALL(cuGraphInstantiateWithFlags, Executable** executable, Graph* graph, u64 flags) {
    if (!is_live(graph)) return INVALID_HANDLE;
    if (flags != 0) return INVALID_VALUE;
    *executable = created(new Executable);
    for (auto& node : graph->nodes) (*executable)->nodes.push_back({node.get(), *node});
    return SUCCESS;
}
CALL(cuGraphExecKernelNodeSetParams_v2, Executable* executable, Node* node, const Launch* launch) {
    if (!is_live(executable)) return INVALID_HANDLE;
    auto& nodes = executable->nodes;
    auto found = std::find_if(nodes.begin(), nodes.end(), [=](auto& entry) { return entry.first == node; });
    if (found == nodes.end() || found->second.function != launch->function) return INVALID_VALUE;
    return launch->check(found->second.work[0]);
}
CALL(cuGraphLaunch, Executable* executable, Stream* stream) {
    if (u32 status = usable(stream)) return status;
    if (!is_live(executable)) return INVALID_HANDLE;
    for (auto& entry : executable->nodes) for (auto& work : entry.second.work) submit(stream, work);
    return SUCCESS;
}
CALL(cuGraphExecDestroy, Executable* executable) {
    if (!ended(executable)) return INVALID_HANDLE;
    return delete executable, SUCCESS;
}
