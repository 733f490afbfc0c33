// A program for heaptrack: a table, scratch buffers of growing size, and a leak. The argument is the number of rounds.
#include <stdlib.h>
#include <string.h>

static void *make_table(size_t rows) {
  void *table = malloc(rows * 64);
  return memset(table, 1, rows * 64);
}

static void *make_buffer(size_t bytes) { return calloc(bytes, 1); }

static void work(int rounds) {
  for (int round = 1; round <= rounds; round++) {
    void *buffer = make_buffer(1000 * round);
    void *scratch = make_buffer(5000);
    free(buffer);
    free(scratch);
  }
}

int main(int count, char **arguments) {
  int rounds = count > 1 ? atoi(arguments[1]) : 50;
  void *table = make_table(1000);
  work(rounds);
  void *leak = realloc(make_table(500), 50000);
  free(table);
  work(rounds / 2);
  return leak == NULL;
}
