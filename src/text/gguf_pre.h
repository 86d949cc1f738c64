/* text/gguf_pre.h - private to load_gguf.c: what the names of GGUF files mean, as the published tokenizer.json files spell it. */
#ifndef RH_TEXT_GGUF_PRE_H
#define RH_TEXT_GGUF_PRE_H

#include "text/text_int.h"

/* Set the normaliser and pre-tokenizer ops and give the decoder as JSON text. */
int gguf_pre_byte_level(struct tokenizer *t, struct str name, const char **decoder, struct err *err);
int gguf_pre_spm(struct tokenizer *t, bool space_prefix, const char **decoder, struct err *err);
int gguf_pre_unigram(struct tokenizer *t, const char **decoder, struct err *err);

/* Whether the published tokenizer puts BOS in front when the file does not say. */
bool gguf_pre_adds_bos(struct str name);

#endif
