/* What the programs have in common: a check that says what did not hold. */
#ifndef CONSUMERS_CHECK_H
#define CONSUMERS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) \
    ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition), exit(1)))

#endif
