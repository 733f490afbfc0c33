// Streams and events. Each stream is a thread that executes work in order.

typedef std::function<void()> Work;

// It pauses at random, so that unordered work runs in any order. If EMULATED_LAZY is set, it executes work only when a
// caller, another stream or a query waits for it.
class Stream {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> queue;
    bool started = false;
    u64 submitted = 0, done = 0;
    // The last work to execute, by number.
    u64 wanted = setting("LAZY") ? 0 : ~0ULL;

    void run() {
        unsigned seed = (unsigned)(size_t)this;
        for (;;) {
            std::unique_lock<std::mutex> lock(mutex);
            changed.wait(lock, [&] { return !queue.empty() && done < wanted; });
            Work next = std::move(queue.front());
            queue.pop_front();
            lock.unlock();
            if (rand_r(&seed) % 4 == 0) usleep(rand_r(&seed) % 300);
            next();
            lock.lock();
            ++done;
            changed.notify_all();
        }
    }

    void want(u64 number) {
        wanted = std::max(wanted, number);
        changed.notify_all();
    }

public:
    const size_t context = current;

    void submit(Work work) {
        Lock lock(mutex);
        if (!started) std::thread([this] { run(); }).detach();
        started = true;
        queue.push_back(std::move(work));
        ++submitted;
        changed.notify_all();
    }

    u64 last() {
        Lock lock(mutex);
        return submitted;
    }

    bool has_passed(u64 number) {
        Lock lock(mutex);
        want(number);
        return done >= number;
    }

    void wait(u64 number) {
        std::unique_lock<std::mutex> lock(mutex);
        want(number);
        changed.wait(lock, [&] { return done >= number; });
    }
};

// A position in a stream.
struct Event {
    const size_t context = current;
    Stream* stream = nullptr;
    u64 number = 0;
};

// All streams. Destroyed ones stay in memory: they finish their work, and events refer to them.
static std::vector<Stream*> streams;

// A stream under capture executes nothing. A wait invalidates the capture.
struct Capture {
    struct Graph* graph;
    bool is_valid;
};
static std::map<Stream*, Capture> captures;

// Refuses to wait for a stream, or for all streams of the device, during a capture.
static u32 check_wait(Stream* stream = nullptr) {
    Lock lock(mutex);
    u32 status = SUCCESS;
    for (auto& [captured, capture] : captures) {
        if (captured->context != current || (stream && captured != stream)) continue;
        capture.is_valid = false;
        status = CAPTURE_UNSUPPORTED;
    }
    return status;
}

// Waits for all work of the current device.
static void wait_for_all() {
    std::unique_lock<std::mutex> lock(mutex);
    std::vector<Stream*> now = streams;
    lock.unlock();
    for (Stream* stream : now) if (stream->context == current) stream->wait(stream->last());
}

// Whether the object, a stream or an event, is live, and its device current and usable.
template <class T> static u32 usable(T* object) {
    if (u32 status = usable()) return status;
    return is_live(object) && object->context == current ? SUCCESS : INVALID_HANDLE;
}

// The default stream of each context. Other streams do not wait for it: all are non-blocking.
static Stream* default_streams[MOST_DEVICES + 1];

// The second handle of the default stream; the first one is 0.
static Stream* const CU_STREAM_LEGACY = (Stream*)1;

// Whether the stream is live, and its device current and usable. Replaces the handles of the default stream.
static u32 usable(Stream*& stream) {
    if (u32 status = usable()) return status;
    if (stream && stream != CU_STREAM_LEGACY) return usable<Stream>(stream);
    Lock lock(mutex);
    Stream*& own = default_streams[current];
    if (!own) streams.push_back(own = new Stream);
    return stream = own, SUCCESS;
}

CALL(cuCtxSynchronize) {
    if (u32 status = usable()) return status;
    if (u32 status = check_wait()) return status;
    return wait_for_all(), SUCCESS;
}

CALL(cuStreamCreate, Stream** stream, u32 flags) {
    if (u32 status = usable()) return status;
    // CU_STREAM_NON_BLOCKING.
    if (flags != 1) return INVALID_VALUE;
    *stream = created(new Stream);
    Lock lock(mutex);
    return streams.push_back(*stream), SUCCESS;
}
CALL(cuStreamDestroy_v2, Stream* stream) { return ended(stream) ? SUCCESS : INVALID_HANDLE; }
CALL(cuStreamSynchronize, Stream* stream) {
    if (u32 status = usable(stream)) return status;
    if (u32 status = check_wait(stream)) return status;
    return stream->wait(stream->last()), SUCCESS;
}
CALL(cuStreamWaitEvent, Stream* stream, Event* event, u32) {
    if (u32 status = usable(stream)) return status;
    if (!is_live(event)) return INVALID_HANDLE;
    // The event as recorded now.
    Stream* other = event->stream;
    u64 number = event->number;
    if (other) stream->submit([=] { other->wait(number); });
    return SUCCESS;
}

CALL(cuEventCreate, Event** event, u32 flags) {
    if (u32 status = usable()) return status;
    // CU_EVENT_DISABLE_TIMING.
    return flags == 2 ? *event = created(new Event), SUCCESS : INVALID_VALUE;
}
CALL(cuEventDestroy_v2, Event* event) {
    if (!ended(event)) return INVALID_HANDLE;
    return delete event, SUCCESS;
}
CALL(cuEventRecord, Event* event, Stream* stream) {
    if (u32 status = (u32)setting("RECORD_STATUS")) return status;
    if (u32 status = usable(stream)) return status;
    if (u32 status = usable(event)) return status;
    return event->stream = stream, event->number = stream->last(), SUCCESS;
}
CALL(cuEventQuery, Event* event) {
    if (u32 status = usable(event)) return status;
    return !event->stream || event->stream->has_passed(event->number) ? SUCCESS : NOT_READY;
}
CALL(cuEventSynchronize, Event* event) {
    if (u32 status = usable(event)) return status;
    if (event->stream) event->stream->wait(event->number);
    return SUCCESS;
}
