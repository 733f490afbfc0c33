/* Scopes with thousands of parts: the report, the ledger and a recording have bounded paths. */
#include <bfc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, bfc_last_error_message()); \
            return 1; \
        } \
    } while (0)

enum { DEPTH = 1000, LONGEST = 4096 };

int main(void) {
    static char parts[LONGEST], whole[LONGEST];
    static bfc_scope scopes[DEPTH];
    static void *blocks[DEPTH];
    const char *names[] = {"a", parts, whole};
    char *text, *found;
    int kind, i, rows;
    for (i = 0; i < LONGEST - 1; i++) {
        parts[i] = i % 2 ? '.' : 'a';
        whole[i] = 'a';
    }
    for (kind = 0; kind < 3; kind++) {
        bfc_pool pool;
        CHECK(bfc_pool_open("memory=dry", &pool) == BFC_OK);
        for (i = 0; i < DEPTH; i++) {
            CHECK(bfc_scope_push(names[kind], &scopes[i]) == BFC_OK);
            CHECK(bfc_allocate(pool, 256, 0, "x", 0, &blocks[i]) == BFC_OK);
        }
        CHECK(bfc_report_json(pool, &text) == BFC_OK);
        for (rows = 0, found = text; (found = strstr(found, "\"high_water_bytes\":256000,")) != NULL; found++)
            rows++;
        /* One row has all bytes: that of the whole run. Deep scopes have the bytes of those below them. */
        CHECK(rows >= 1 && strlen(text) < (4 << 20));
        CHECK(bfc_string_free(text) == BFC_OK);
        CHECK(bfc_ledger_json(pool, &text) == BFC_OK);
        CHECK(strstr(text, "\"live\":256000,") != NULL && strlen(text) < (4 << 20));
        CHECK(bfc_string_free(text) == BFC_OK);
        CHECK(bfc_report_text(pool, &text) == BFC_OK && bfc_string_free(text) == BFC_OK);
        for (i = DEPTH - 1; i >= 0; i--)
            CHECK(bfc_free(pool, blocks[i]) == BFC_OK && bfc_scope_pop(scopes[i]) == BFC_OK);
        CHECK(bfc_pool_close(pool) == BFC_OK);
    }
    puts("reports of deep scopes are small");
    return 0;
}
