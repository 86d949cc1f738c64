/* server/volatile.h - parts of system messages that coding agents change with every request, and that would make the whole prompt unknown.
 *
 * Left away: a first line `x-anthropic-billing-header: ...` (a block or a line of its own), and the time of day in lines that tell the date
 * (`Today's date: ...`, `Current time: ...` and the like); the date itself stays, it changes once a day.  docs/server.md lists them. */
#ifndef RH_SERVER_VOLATILE_H
#define RH_SERVER_VOLATILE_H

#include "base/buf.h"

enum { VOLATILE_BILLING = 1, VOLATILE_TIME = 2 };

/* A system message's text without them; what went is added to *what. */
void volatile_put(struct buf *out, struct str text, unsigned *what);

#endif
