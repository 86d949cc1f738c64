/* chat/output_int.h - inside the chat room only: what an output format is made of. */
#ifndef RH_CHAT_OUTPUT_INT_H
#define RH_CHAT_OUTPUT_INT_H

#include "chat/output.h"

struct output_format {
    const char *name;
};

#endif
