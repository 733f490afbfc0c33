// Device memory, pinned memory and virtual memory.

constexpr size_t GRANULARITY = 2 << 20;
// CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE and CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
constexpr int PINNED_ALLOCATION = 1, ON_DEVICE = 1, READ_AND_WRITE = 3;

// Device memory at an address: from cuMemAlloc, or mapped from a handle.
struct Range {
    size_t bytes, context;
    u64 handle;
    bool accessible;
};

// Physical memory. It is freed with its last reference: its handle and its mappings.
struct Physical {
    size_t bytes, context;
    int references;
    bool released;
};

static std::map<u64, Range> ranges;
static std::map<u64, Physical> physical;
static u64 last_handle = 0;
// Bytes of reserved address ranges and of pinned memory.
static std::map<u64, size_t> reserved, pinned;
static size_t pinned_bytes = 0, peak_pinned_bytes = 0;
// Calls of cuMemAlloc and cuMemFree.
static std::atomic<size_t> allocations{0}, frees{0};

// The entry that starts last at or before an address, or `end()`.
template <class T> static typename std::map<u64, T>::iterator before(std::map<u64, T>& map, u64 address) {
    auto after = map.upper_bound(address);
    return after == map.begin() ? map.end() : std::prev(after);
}

// Checks that the current device may access these bytes. A device that accesses another device's memory is lost.
static u32 check_access(u64 address, size_t bytes) {
    Lock lock(mutex);
    for (u64 end = address + bytes; address < end;) {
        auto found = before(ranges, address);
        if (found == ranges.end()) return INVALID_VALUE;
        auto [start, range] = *found;
        if (address >= start + range.bytes || !range.accessible) return INVALID_VALUE;
        if (range.context != current) return lost[current] = true, ILLEGAL_ADDRESS;
        address = start + range.bytes;
    }
    return SUCCESS;
}

static bool is_pinned(u64 address, size_t bytes) {
    Lock lock(mutex);
    auto found = before(pinned, address);
    return found != pinned.end() && address + bytes <= found->first + found->second;
}

// Host memory that is not zero, so that callers cannot rely on it.
static void* allocated(size_t bytes, size_t alignment) {
    void* memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory) memset(memory, 0xab, bytes < 4096 ? bytes : 4096);
    return memory;
}

static bool is_granular(size_t bytes) { return bytes > 0 && bytes % GRANULARITY == 0; }

CALL(cuMemGetInfo_v2, size_t* free_bytes, size_t* total) {
    if (current == 0) return INVALID_CONTEXT;
    Lock lock(mutex);
    return *free_bytes = total_bytes() - used[current], *total = total_bytes(), SUCCESS;
}

CALL(cuMemAlloc_v2, u64* address, size_t bytes) {
    if (u32 status = usable()) return status;
    if (bytes == 0) return INVALID_VALUE;
    ++allocations;
    Lock lock(mutex);
    void* memory = bytes > total_bytes() - used[current] ? nullptr : allocated(bytes, 512);
    if (!memory) return OUT_OF_MEMORY;
    ranges[*address = (u64)memory] = {bytes, current, 0, true};
    return used[current] += bytes, SUCCESS;
}

CALL(cuMemFree_v2, u64 address) {
    if (current == 0) return INVALID_CONTEXT;
    ++frees;
    wait_for_all();
    Lock lock(mutex);
    auto range = ranges.find(address);
    if (range == ranges.end() || range->second.handle || range->second.context != current) return INVALID_VALUE;
    used[current] -= range->second.bytes;
    ranges.erase(range);
    return free((void*)address), SUCCESS;
}

CALL(cuMemHostAlloc, void** address, size_t bytes, u32) {
    if (current == 0) return INVALID_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    Lock lock(mutex);
    if (bytes > total_bytes() || !(*address = allocated(bytes, 4096))) return OUT_OF_MEMORY;
    pinned[(u64)*address] = bytes;
    pinned_bytes += bytes;
    return peak_pinned_bytes = std::max(peak_pinned_bytes, pinned_bytes), SUCCESS;
}

CALL(cuMemFreeHost, void* address) {
    if (current == 0) return INVALID_CONTEXT;
    Lock lock(mutex);
    auto found = pinned.find((u64)address);
    if (found == pinned.end()) return INVALID_VALUE;
    pinned_bytes -= found->second;
    pinned.erase(found);
    return free(address), SUCCESS;
}

CALL(cuMemGetAllocationGranularity, size_t* bytes, const void*, u32) { return *bytes = GRANULARITY, SUCCESS; }

CALL(cuMemAddressReserve, u64* address, size_t bytes, size_t, u64, u64) {
    if (!is_granular(bytes)) return INVALID_VALUE;
    void* memory = mmap(nullptr, bytes + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    u64 start = (u64)memory, aligned = (start + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    if (aligned > start) munmap(memory, aligned - start);
    if (aligned < start + GRANULARITY) munmap((void*)(aligned + bytes), start + GRANULARITY - aligned);
    Lock lock(mutex);
    return reserved[*address = aligned] = bytes, SUCCESS;
}

CALL(cuMemAddressFree, u64 address, size_t bytes) {
    Lock lock(mutex);
    auto found = reserved.find(address);
    auto mapped = ranges.lower_bound(address);
    if (found == reserved.end() || found->second != bytes) return INVALID_VALUE;
    if (mapped != ranges.end() && mapped->first < address + bytes) return INVALID_VALUE;
    reserved.erase(found);
    return munmap((void*)address, bytes) == 0 ? SUCCESS : INVALID_VALUE;
}

// The kind of memory, the kind of handle, the kind of location and its number.
CALL(cuMemCreate, u64* handle, size_t bytes, const int* properties, u64) {
    if (u32 status = usable()) return status;
    const int expected[] = {PINNED_ALLOCATION, 0, ON_DEVICE, (int)current - 1};
    if (memcmp(properties, expected, sizeof expected) != 0 || !is_granular(bytes)) return INVALID_VALUE;
    Lock lock(mutex);
    if (bytes > total_bytes() - used[current]) return OUT_OF_MEMORY;
    physical[*handle = ++last_handle] = {bytes, current, 1, false};
    return used[current] += bytes, SUCCESS;
}

// Drops a reference to physical memory. The caller holds the lock.
static void drop_reference(u64 handle) {
    Physical& memory = physical[handle];
    if (--memory.references > 0) return;
    used[memory.context] -= memory.bytes;
    physical.erase(handle);
}

CALL(cuMemRelease, u64 handle) {
    Lock lock(mutex);
    auto found = physical.find(handle);
    if (found == physical.end() || found->second.released) return INVALID_VALUE;
    found->second.released = true;
    return drop_reference(handle), SUCCESS;
}

CALL(cuMemMap, u64 address, size_t bytes, size_t offset, u64 handle, u64) {
    if (u32 status = usable()) return status;
    Lock lock(mutex);
    auto memory = physical.find(handle);
    if (memory == physical.end() || memory->second.released || memory->second.bytes != bytes || offset != 0) return INVALID_VALUE;
    auto inside = before(reserved, address);
    if (inside == reserved.end() || address + bytes > inside->first + inside->second) return INVALID_VALUE;
    auto other = before(ranges, address + bytes - 1);
    if (other != ranges.end() && other->first + other->second.bytes > address) return INVALID_VALUE;
    ranges[address] = {bytes, current, handle, false};
    return ++memory->second.references, SUCCESS;
}

// The kind of location, its number, and the access.
CALL(cuMemSetAccess, u64 address, size_t bytes, const int* access, size_t count) {
    if (u32 status = usable()) return status;
    const int expected[] = {ON_DEVICE, (int)current - 1, READ_AND_WRITE};
    if (count != 1 || memcmp(access, expected, sizeof expected) != 0) return INVALID_VALUE;
    std::unique_lock<std::mutex> lock(mutex);
    for (auto range = ranges.lower_bound(address); range != ranges.end() && range->first < address + bytes; ++range) {
        if (range->second.accessible) continue;
        if (mprotect((void*)range->first, range->second.bytes, PROT_READ | PROT_WRITE) != 0) return INVALID_VALUE;
        memset((void*)range->first, 0xab, 4096);
        range->second.accessible = true;
    }
    lock.unlock();
    return check_access(address, bytes);
}

CALL(cuMemUnmap, u64 address, size_t bytes) {
    if (current == 0) return INVALID_CONTEXT;
    Lock lock(mutex);
    auto range = ranges.find(address);
    if (range == ranges.end() || !range->second.handle || range->second.bytes != bytes) return INVALID_VALUE;
    drop_reference(range->second.handle);
    ranges.erase(range);
    madvise((void*)address, bytes, MADV_DONTNEED);
    return mprotect((void*)address, bytes, PROT_NONE) == 0 ? SUCCESS : INVALID_VALUE;
}
