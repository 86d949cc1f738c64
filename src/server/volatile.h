/* server/volatile.h - parts of system messages that coding agents change with every request, and that would make the whole prompt unknown.
 *
 * Left away: a first line `x-anthropic-billing-header: ...` (a block or a line of its own), and the time of day in lines that tell the date
 * (`Today's date: ...`, `Current time: ...` and the like).  The date itself changes once a day, and the model may be asked for it: it goes
 * only when that was asked for.  docs/server.md lists them. */
#ifndef RH_SERVER_VOLATILE_H
#define RH_SERVER_VOLATILE_H

#include "base/buf.h"

enum { VOLATILE_BILLING = 1, VOLATILE_TIME = 2, VOLATILE_DATE = 4 };

/* A system message's text without them (undated: and without dates in those lines); what went is added to *what. */
void volatile_put(struct buf *out, struct str text, bool undated, unsigned *what);

#endif
