/* cli/line.h - one line of input at a time: editing and history on a terminal (libedit), plain reading elsewhere.
 *
 * Owns:       the terminal's state while a line is read, the history file.
 * Invariants: 1. A paste of several lines arrives as one input: it is shown as a marker and put back in full when the line is entered.
 *             2. A line that ends in a backslash, or opens with three quotation marks, goes on until it is closed.
 * Thread:     one. */
#ifndef RH_CLI_LINE_H
#define RH_CLI_LINE_H

#include "base/buf.h"

struct line_editor;

enum line_result { LINE_TEXT, LINE_INTERRUPT, LINE_END };

struct line_editor *line_open(const char *history_path); /* exits when out of memory; history_path may be NULL */
void line_close(struct line_editor *l);
/* Replaces *out with the text, without the final newline. */
enum line_result line_read(struct line_editor *l, struct buf *out);

#endif
