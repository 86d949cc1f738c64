/* base/utf8.h - UTF-8 by the Unicode maximal-subpart rule (the same replacement as Python's errors='replace'). */
#ifndef RH_BASE_UTF8_H
#define RH_BASE_UTF8_H

#include "base/str.h"

#include <stdint.h>

enum { UTF8_BAD = 0xFFFFFFFFu };

/* Decode the first scalar of a non-empty text.  Returns the bytes used (>= 1); *cp = UTF8_BAD for a maximal invalid subpart,
 * whose length is returned (to be replaced by one U+FFFD). */
size_t utf8_decode(struct str s, uint32_t *cp);

/* Encode a scalar value (surrogates and > 0x10FFFF are the caller's mistake).  Returns 1..4. */
size_t utf8_encode(uint32_t cp, char out[4]);

bool utf8_valid(struct str s);

/* How many trailing bytes of `s` are the start of a scalar that more bytes may complete (0..3). */
size_t utf8_tail_open(struct str s);

#endif
