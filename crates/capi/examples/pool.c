/*
 * A pool that two threads share, with scopes, a prediction, an out-of-memory error, a report and a recording.
 *
 *     pool [RECORDING.hwm]
 */
#include <bfc.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)

/* Ends the program if a call failed. */
#define CHECK(call) check((call), #call)

static void check(bfc_status status, const char *call) {
    if (status != BFC_OK) {
        fprintf(stderr, "%s failed with status %d: %s\n", call, (int)status, bfc_last_error_message());
        exit(EXIT_FAILURE);
    }
}

/* Makes the requests of one step. Works on every pool, also on one without memory. */
static void step(bfc_pool pool) {
    bfc_scope net, layer, op;
    void *weights, *result, *scratch;

    CHECK(bfc_scope_push("net", &net));
    CHECK(bfc_allocate(pool, 512 * KIB, 0, "weights", BFC_PARAMETER, &weights));

    CHECK(bfc_scope_push("attention", &layer));
    /* All blocks up to the pop belong to one call of the op. */
    CHECK(bfc_op_push(pool, "scores", &op));
    CHECK(bfc_allocate(pool, 100 * KIB, 0, NULL, BFC_OUTPUT, &result));
    CHECK(bfc_allocate(pool, 2 * MIB, 4096, NULL, BFC_WORKSPACE, &scratch));
    CHECK(bfc_free(pool, scratch));
    CHECK(bfc_scope_pop(op));
    CHECK(bfc_scope_pop(layer));

    CHECK(bfc_free(pool, result));
    CHECK(bfc_free(pool, weights));
    CHECK(bfc_scope_pop(net));
}

static uint64_t peak_of(bfc_pool pool) {
    bfc_stats stats;
    stats.size = sizeof stats;
    CHECK(bfc_pool_stats(pool, &stats));
    return stats.peak_bytes_in_use;
}

/* Runs the step on a pool of addresses without memory. */
static uint64_t predict(void) {
    bfc_pool dry;
    uint64_t peak;
    CHECK(bfc_pool_open("bfc:memory=dry,limit=64MiB", &dry));
    step(dry);
    peak = peak_of(dry);
    CHECK(bfc_pool_close(dry));
    return peak;
}

struct worker {
    bfc_pool pool;
    const char *name;
};

static void *work(void *argument) {
    const struct worker *worker = argument;
    bfc_scope scope;
    void *block;
    int round;

    /* Each thread has its own scopes. */
    CHECK(bfc_scope_push(worker->name, &scope));
    for (round = 0; round < 100; round++) {
        step(worker->pool);
    }
    CHECK(bfc_allocate(worker->pool, 1000, 0, "log", BFC_OUTPUT, &block));
    memset(block, 1, 1000);
    CHECK(bfc_reallocate(worker->pool, block, 2000, &block));
    memset((char *)block + 1000, 2, 1000);
    CHECK(bfc_scope_pop(scope));
    return block;
}

static void run_workers(bfc_pool pool) {
    struct worker workers[2];
    pthread_t threads[2];
    void *block;
    int index;

    for (index = 0; index < 2; index++) {
        workers[index].pool = pool;
        workers[index].name = index == 0 ? "left" : "right";
        if (pthread_create(&threads[index], NULL, work, &workers[index]) != 0) {
            exit(EXIT_FAILURE);
        }
    }
    for (index = 0; index < 2; index++) {
        pthread_join(threads[index], &block);
        /* Any thread may free a block. */
        CHECK(bfc_free(pool, block));
    }
}

int main(int count, char **arguments) {
    bfc_pool pool;
    void *weights, *none = NULL;
    char *report;
    uint64_t predicted = predict();

    if (bfc_abi_version() >> 16 != BFC_ABI_MAJOR) {
        fprintf(stderr, "bfc.h does not match the library, version %s\n", bfc_version());
        return EXIT_FAILURE;
    }
    CHECK(bfc_pool_open("bfc:memory=host,limit=64MiB,retry_ms=0,name=cpu", &pool));
    if (count > 1) {
        CHECK(bfc_recording_start(pool, arguments[1]));
    }
    step(pool);
    printf("predicted peak %lu bytes, measured %lu bytes\n", (unsigned long)predicted, (unsigned long)peak_of(pool));
    if (predicted != peak_of(pool)) {
        return EXIT_FAILURE;
    }
    run_workers(pool);

    CHECK(bfc_allocate(pool, 20 * MIB, 0, "net.weights", BFC_PARAMETER, &weights));
    if (bfc_allocate(pool, 60 * MIB, 0, "net.cache", BFC_OUTPUT, &none) != BFC_ERROR_OUT_OF_MEMORY) {
        return EXIT_FAILURE;
    }
    printf("\n%s\n\n", bfc_last_error_details());
    if (bfc_pool_close(pool) != BFC_ERROR_POOL_IN_USE) {
        return EXIT_FAILURE;
    }
    printf("%s\n\n", bfc_last_error_message());

    CHECK(bfc_report_text(pool, &report));
    puts(report);
    CHECK(bfc_string_free(report));

    CHECK(bfc_free(pool, weights));
    if (count > 1) {
        CHECK(bfc_recording_stop(pool));
    }
    CHECK(bfc_pool_close(pool));
    return EXIT_SUCCESS;
}
