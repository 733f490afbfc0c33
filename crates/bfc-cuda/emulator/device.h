// Devices, contexts and live objects of the emulated driver.

typedef std::lock_guard<std::mutex> Lock;

constexpr u32 SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
              INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801,
              CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901;
constexpr int MOST_DEVICES = 4;

// Attributes of a device.
constexpr int CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, MAPS_MEMORY = 102;

// The value of EMULATED_<name>.
static u64 setting(const char* name, u64 otherwise = 0) {
    const char* text = getenv((std::string("EMULATED_") + name).c_str());
    return text ? strtoull(text, nullptr, 10) : otherwise;
}

static int device_count() {
    u64 count = setting("DEVICES", 2);
    return count < MOST_DEVICES ? (int)count : MOST_DEVICES;
}

// Bytes of each device.
static size_t total_bytes() { return setting("MEMORY", u64(6) << 30); }

// Guards all state of the driver, except the queues of streams.
static std::mutex mutex;
// The current context of this thread: the device's number plus one, or 0.
static thread_local size_t current = 0;
static size_t contexts = 0;
// Allocated bytes, and whether the device is lost, by context.
static size_t used[MOST_DEVICES + 1];
static std::atomic<bool> lost[MOST_DEVICES + 1];

// Live objects by handle.
template <class T> static std::set<T*> live;

template <class T> static T* created(T* object) {
    Lock lock(mutex);
    live<T>.insert(object);
    return object;
}

template <class T> static bool is_live(T* object) {
    Lock lock(mutex);
    return live<T>.count(object) > 0;
}

// Ends the life of a handle; false if it was not live.
template <class T> static bool ended(T* object) {
    Lock lock(mutex);
    return live<T>.erase(object) > 0;
}

// Whether the thread's current device accepts work.
static u32 usable() { return current == 0 ? INVALID_CONTEXT : lost[current] ? ILLEGAL_ADDRESS : SUCCESS; }

CALL(cuInit, u32) { return (u32)setting("INIT_STATUS"); }
CALL(cuDriverGetVersion, int* version) { return *version = (int)setting("VERSION", 13000), SUCCESS; }
CALL(cuGetErrorName, u32, const char**) { return INVALID_VALUE; }
CALL(cuGetErrorString, u32, const char**) { return INVALID_VALUE; }

CALL(cuDeviceGetCount, int* count) { return *count = device_count(), SUCCESS; }
CALL(cuDeviceGet, int* device, int ordinal) {
    return *device = ordinal, ordinal >= 0 && ordinal < device_count() ? SUCCESS : INVALID_DEVICE;
}
CALL(cuDeviceGetName, char* name, int bytes, int) {
    return snprintf(name, (size_t)bytes, "Emulated Device") < bytes ? SUCCESS : INVALID_VALUE;
}
CALL(cuDeviceGetAttribute, int* value, int attribute, int) {
    int capability = (int)setting("CAPABILITY", 90);
    *value = attribute == CAPABILITY_MAJOR   ? capability / 10
             : attribute == CAPABILITY_MINOR ? capability % 10
             : attribute == MAPS_MEMORY      ? !setting("NO_MAPPING")
                                             : 0;
    return SUCCESS;
}
CALL(cuDeviceTotalMem_v2, size_t* bytes, int) { return *bytes = total_bytes(), SUCCESS; }

CALL(cuDevicePrimaryCtxRetain, size_t* context, int device) {
    if (u32 status = (u32)setting("CONTEXT_STATUS")) return status;
    Lock lock(mutex);
    return ++contexts, *context = device + 1, SUCCESS;
}
CALL(cuDevicePrimaryCtxRelease_v2, int) {
    Lock lock(mutex);
    return contexts-- > 0 ? SUCCESS : INVALID_CONTEXT;
}
CALL(cuCtxGetCurrent, size_t* context) { return *context = current, SUCCESS; }
CALL(cuCtxSetCurrent, size_t context) { return current = context, SUCCESS; }
