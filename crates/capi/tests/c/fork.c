/* Children of fork() fail with one status, never wait for a lock, exit silently, and leave the recording of the parent
 * as it is. `fork FILE.hwm` runs all cases. The parent fails if a child ends with a signal, as after its alarm. */
#define _DEFAULT_SOURCE
#include <bfc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, bfc_last_error_message()); \
            _exit(1); \
        } \
    } while (0)

static bfc_pool pool, small;
static void *kept, *filler;
static int stopped;

static int is_stopped(void) { return __atomic_load_n(&stopped, __ATOMIC_SEQ_CST); }

/* Allocates and frees with a cache, an op and a scope. */
static void *allocate(void *unused) {
    while (!is_stopped()) {
        void *block;
        bfc_scope scope, op;
        CHECK(bfc_scope_push("busy", &scope) == BFC_OK && bfc_op_push(pool, "op", &op) == BFC_OK);
        CHECK(bfc_allocate(pool, 1000, 0, "spin", 0, &block) == BFC_OK && bfc_free(pool, block) == BFC_OK);
        CHECK(bfc_scope_pop(op) == BFC_OK && bfc_scope_pop(scope) == BFC_OK);
    }
    return unused;
}

/* Opens and closes pools, makes reports, and fails for want of memory. */
static void *open_and_report(void *unused) {
    while (!is_stopped()) {
        bfc_pool other;
        void *block;
        char *report;
        CHECK(bfc_pool_open("limit=1MiB,growth=on,retry_ms=0", &other) == BFC_OK);
        CHECK(bfc_allocate(other, 2 << 20, 0, "large", 0, &block) == BFC_ERROR_OUT_OF_MEMORY);
        CHECK(strlen(bfc_last_error_details()) > 0);
        CHECK(bfc_report_text(0, &report) == BFC_OK && bfc_string_free(report) == BFC_OK);
        CHECK(bfc_pool_close(other) == BFC_OK);
    }
    return unused;
}

/* Waits for memory that no thread frees. */
static void *wait_for_memory(void *unused) {
    while (!is_stopped()) {
        void *block;
        CHECK(bfc_allocate(small, 3 << 10, 0, "waits", 0, &block) == BFC_ERROR_OUT_OF_MEMORY);
    }
    return unused;
}

static void *allocate_once(void *unused) {
    void *block;
    CHECK(bfc_allocate(pool, 1000, 0, "once", 0, &block) == BFC_OK && bfc_free(pool, block) == BFC_OK);
    return unused;
}

/* Starts threads that end soon. */
static void *start_threads(void *unused) {
    while (!is_stopped()) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, allocate_once, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
    return unused;
}

static void *last_calls(void *unused) {
    void *block;
    bfc_scope scope;
    CHECK(bfc_scope_push("thread", &scope) == BFC_ERROR_FORKED);
    CHECK(bfc_allocate(pool, 8, 0, NULL, 0, &block) == BFC_ERROR_FORKED);
    return unused;
}

/* What a child may do: everything fails except the functions of the last error. */
static void run_child(void) {
    void *block = NULL;
    char *text = NULL;
    bfc_pool other;
    bfc_scope scope;
    bfc_stats stats;
    uint64_t bytes;
    pthread_t thread;
    stats.size = sizeof stats;
    (void)bfc_last_error_details();
    (void)bfc_last_error_json();
    CHECK(bfc_allocate(pool, 500, 0, "child", 0, &block) == BFC_ERROR_FORKED && block == NULL);
    CHECK(bfc_last_error() == BFC_ERROR_FORKED && strstr(bfc_last_error_message(), "child of fork()") != NULL);
    CHECK(strstr(bfc_last_error_json(), "\"forked\"") != NULL);
    CHECK(memcmp(kept, "parent", 7) == 0);
    CHECK(bfc_free(pool, kept) == BFC_ERROR_FORKED && memcmp(kept, "parent", 7) == 0);
    CHECK(bfc_reallocate(pool, kept, 9, &block) == BFC_ERROR_FORKED);
    CHECK(bfc_size_of(pool, kept, &bytes) == BFC_ERROR_FORKED);
    CHECK(bfc_pool_open("memory=dry", &other) == BFC_ERROR_FORKED);
    CHECK(bfc_pool_stats(pool, &stats) == BFC_ERROR_FORKED);
    CHECK(bfc_report_text(pool, &text) == BFC_ERROR_FORKED && bfc_ledger_json(pool, &text) == BFC_ERROR_FORKED);
    CHECK(bfc_scope_push("child", &scope) == BFC_ERROR_FORKED);
    CHECK(bfc_recording_start(0, "child.hwm") == BFC_ERROR_FORKED);
    CHECK(bfc_recording_stop(0) == BFC_ERROR_FORKED && bfc_mark(0, "child") == BFC_ERROR_FORKED);
    CHECK(bfc_pool_trim(pool, 0, NULL) == BFC_ERROR_FORKED && bfc_pool_close(pool) == BFC_ERROR_FORKED);
    CHECK(bfc_torch_malloc(8, 0, NULL) == NULL && bfc_last_error() == BFC_ERROR_FORKED);
    /* Memory of NumPy's functions comes from malloc(). */
    block = bfc_numpy_calloc(10, 10);
    CHECK(block != NULL && ((char *)block)[99] == 0);
    block = bfc_numpy_realloc(block, 1 << 20);
    CHECK(block != NULL && ((char *)block)[99] == 0);
    bfc_numpy_free(block);
    block = bfc_numpy_realloc(kept, 1 << 20);
    CHECK(block != NULL && block != kept && memcmp(block, "parent", 7) == 0);
    bfc_numpy_free(block);
    bfc_numpy_free(kept);
    CHECK(bfc_numpy_malloc(SIZE_MAX) == NULL && memcmp(kept, "parent", 7) == 0);
    CHECK(pthread_create(&thread, NULL, last_calls, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void wait_for(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "a child ended with the status %d\n", status);
        _exit(1);
    }
}

/* A child and a child of it. Both end with exit(), which runs exit handlers and destructors of the thread. */
static void fork_twice(void) {
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild;
        alarm(20);
        run_child();
        grandchild = fork();
        if (grandchild == 0) {
            alarm(20);
            run_child();
            exit(0);
        }
        wait_for(grandchild);
        exit(0);
    }
    wait_for(child);
}

static void visit(void *user, const char *owner, uint64_t own, uint64_t live, uint64_t peak) {
    pid_t *child = user;
    (void)owner, (void)own, (void)live, (void)peak;
    *child = fork();
    if (*child == 0) {
        alarm(20);
        run_child();
    } else {
        wait_for(*child);
    }
}

/* The child returns to the library, which calls the visitor no more. */
static void fork_in_a_visitor(void) {
    pid_t child = -1;
    bfc_status status = bfc_ledger_visit(pool, visit, &child);
    CHECK(status == (child == 0 ? BFC_ERROR_FORKED : BFC_OK));
    if (child == 0)
        exit(0);
}

int main(int count, char **arguments) {
    void *(*work[])(void *) = {allocate, allocate, open_and_report, wait_for_memory, start_threads};
    pthread_t threads[sizeof work / sizeof *work];
    const int kinds = sizeof work / sizeof *work;
    bfc_scope scope, op;
    pid_t child;
    int i;
    CHECK(count == 2);

    /* A process that has not called the library has no state: its children use the library. */
    child = fork();
    if (child == 0) {
        CHECK(bfc_pool_open("limit=1MiB", &pool) == BFC_OK && bfc_recording_start(0, arguments[1]) == BFC_OK);
        exit(0);
    }
    wait_for(child);

    CHECK(bfc_pool_open("limit=64MiB,growth=on,retry_ms=0,thread_cache=on,name=p", &pool) == BFC_OK);
    CHECK(bfc_pool_open("limit=4KiB,retry_ms=30,name=small", &small) == BFC_OK);
    CHECK(bfc_allocate(small, 2 << 10, 0, "filler", 0, &filler) == BFC_OK);
    CHECK(bfc_numpy_use(pool) == BFC_OK);
    CHECK(bfc_allocate(pool, 7, 0, "kept", 0, &kept) == BFC_OK);
    memcpy(kept, "parent", 7);
    CHECK(bfc_recording_start(0, arguments[1]) == BFC_OK);
    CHECK(bfc_scope_push("open", &scope) == BFC_OK && bfc_op_push(pool, "openop", &op) == BFC_OK);
    fork_twice();
    fork_in_a_visitor();

    for (i = 0; i < kinds; i++)
        CHECK(pthread_create(&threads[i], NULL, work[i], NULL) == 0);
    for (i = 0; i < 40; i++) {
        usleep(1000);
        fork_twice();
        if (i % 8 == 0)
            fork_in_a_visitor();
    }
    __atomic_store_n(&stopped, 1, __ATOMIC_SEQ_CST);
    for (i = 0; i < kinds; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    CHECK(memcmp(kept, "parent", 7) == 0);
    CHECK(bfc_scope_pop(op) == BFC_OK && bfc_scope_pop(scope) == BFC_OK);
    CHECK(bfc_recording_stop(0) == BFC_OK);
    CHECK(bfc_free(pool, kept) == BFC_OK && bfc_free(small, filler) == BFC_OK);
    CHECK(bfc_pool_close(pool) == BFC_OK && bfc_pool_close(small) == BFC_OK);
    puts("all children ended");
    return 0;
}
