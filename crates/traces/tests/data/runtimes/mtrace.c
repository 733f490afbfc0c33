#include <mcheck.h>
__attribute__((constructor)) static void start(void) { mtrace(); }
