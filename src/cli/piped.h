/* cli/piped.h - text on standard input beside a prompt on the command line.
 *
 * A program is often started with a standard input it was never meant to read: a terminal, or a pipe that its parent keeps open and never
 * writes to.  So this waits for a first byte, and for each further one, only so long, unless it is told to wait. */
#ifndef RH_CLI_PIPED_H
#define RH_CLI_PIPED_H

#include "base/buf.h"

#include <stdbool.h>

enum piped {
    PIPED_NOTHING, /* no pipe, socket or file; or an empty one */
    PIPED_WHOLE,   /* to its end */
    PIPED_SILENT,  /* open, but nothing came within PIPED_FIRST_MS */
    PIPED_PAUSED   /* something came, then nothing for PIPED_PAUSE_MS: taken as ended */
};
enum { PIPED_FIRST_MS = 1000, PIPED_PAUSE_MS = 10000 };

/* wait: for its end, however long that takes.  Negative: ERR_X. */
int piped_read(struct buf *out, bool wait, size_t max_bytes, struct err *err);

#endif
