/* A program that exits with open scopes, ops and pools, with threads that allocate, and with calls in exit handlers.
 * `exit FILE.hwm` prints nothing and ends with 0. */
#define _DEFAULT_SOURCE
#include <bfc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, bfc_last_error_message()); \
            _exit(1); \
        } \
    } while (0)

static bfc_pool pool;

/* All kinds of calls. The thread may have dropped its scopes. */
static void call_everything(void) {
    void *block;
    char *text;
    bfc_scope scope;
    uint64_t bytes;
    bfc_status status;
    CHECK(bfc_allocate(pool, 100, 0, "late.owner", 0, &block) == BFC_OK);
    CHECK(bfc_size_of(pool, block, &bytes) == BFC_OK && bytes == 100);
    CHECK(bfc_reallocate(pool, block, 5000, &block) == BFC_OK && bfc_free(pool, block) == BFC_OK);
    CHECK(bfc_report_text(pool, &text) == BFC_OK && bfc_string_free(text) == BFC_OK);
    CHECK(bfc_ledger_json(pool, &text) == BFC_OK && bfc_string_free(text) == BFC_OK);
    CHECK(bfc_mark(pool, "late") == BFC_OK);
    status = bfc_scope_push("late", &scope);
    CHECK(status == BFC_OK || status == BFC_ERROR_UNSUPPORTED);
    CHECK(status != BFC_OK || bfc_scope_pop(scope) == BFC_OK);
    status = bfc_op_push(pool, "late", &scope);
    CHECK(status == BFC_OK || status == BFC_ERROR_UNSUPPORTED);
    CHECK(status != BFC_OK || bfc_scope_pop(scope) == BFC_OK);
    status = bfc_phase_push(BFC_BACKWARD, &scope);
    CHECK(status == BFC_OK || status == BFC_ERROR_UNSUPPORTED);
    CHECK(status != BFC_OK || bfc_scope_pop(scope) == BFC_OK);
    CHECK(bfc_scope_pop(77) == BFC_ERROR_INVALID_HANDLE);
    CHECK(bfc_allocate(pool, 1 << 30, 0, "late", 0, &block) == BFC_ERROR_OUT_OF_MEMORY);
    CHECK(bfc_last_error_details() != NULL && bfc_last_error_json() != NULL);
}

static void after_the_recording(void) {
    call_everything();
    CHECK(bfc_recording_stop(0) == BFC_ERROR_RECORDING);
}

static void *allocate(void *unused) {
    bfc_scope scope;
    CHECK(bfc_scope_push("thread", &scope) == BFC_OK);
    for (;;) {
        void *block;
        CHECK(bfc_allocate(pool, 1000, 0, "spin", 0, &block) == BFC_OK && bfc_free(pool, block) == BFC_OK);
    }
    return unused;
}

static void end_of_thread(void *unused) {
    (void)unused;
    call_everything();
}

static void *end_with_open_scopes(void *key) {
    bfc_scope scope;
    CHECK(bfc_scope_push("ends", &scope) == BFC_OK && bfc_op_push(pool, "ends", &scope) == BFC_OK);
    CHECK(pthread_setspecific(*(pthread_key_t *)key, key) == 0);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t thread;
    pthread_key_t key;
    bfc_scope scope;
    void *block;
    int i;
    CHECK(count == 2);
    CHECK(atexit(after_the_recording) == 0 && pthread_key_create(&key, end_of_thread) == 0);
    CHECK(bfc_pool_open("limit=64MiB,growth=on,retry_ms=0,thread_cache=on", &pool) == BFC_OK);
    CHECK(bfc_recording_start(0, arguments[1]) == BFC_OK);
    CHECK(pthread_create(&thread, NULL, end_with_open_scopes, &key) == 0 && pthread_join(thread, NULL) == 0);
    /* Exit handlers run in the opposite order of their registration: this one runs during the recording. */
    CHECK(atexit(call_everything) == 0);
    for (i = 0; i < 3; i++)
        CHECK(pthread_create(&thread, NULL, allocate, NULL) == 0);
    usleep(50000);
    CHECK(bfc_scope_push("open", &scope) == BFC_OK && bfc_op_push(pool, "openop", &scope) == BFC_OK);
    CHECK(bfc_allocate(pool, 100, 0, "left", 0, &block) == BFC_OK);
    return 0;
}
