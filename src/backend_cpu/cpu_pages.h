/* backend_cpu/cpu_pages.h - where a head's planes lie, and encoding into them; shared by cpu_pages.c and cpu_attention.c. */
#ifndef RH_CPU_PAGES_H
#define RH_CPU_PAGES_H

#include "backend_cpu/cpu_int.h"

/* The K plane of one kv head in one page; its V plane follows after kv_format_k_bytes. */
static inline unsigned char *cpu_page_head(const struct kv_layer *l, uint32_t page, uint32_t head)
{
    return l->pages[page] + l->offset + (size_t)head * l->head_bytes;
}

#endif
