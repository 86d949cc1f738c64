/* tensor/kv_tables.h - code books and signs of the K and V formats; made by scripts/kv_tables.py.  Included by kv_codec.c and by backends whose device has memory of its own. */
#ifndef RH_TENSOR_KV_TABLES_H
#define RH_TENSOR_KV_TABLES_H

#include <stdint.h>

/* storage of the tables; a backend that keeps them elsewhere says where */
#ifndef KV_TABLE
#define KV_TABLE static const
#endif

/* levels 0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590 */
KV_TABLE int8_t book4[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};
KV_TABLE float book4_borders[15] = {-111.5f, -85.5f, -66.5f, -51.0f, -37.5f, -24.5f, -12.0f, 0.0f, 12.0f, 24.5f, 37.5f, 51.0f, 66.5f, 85.5f, 111.5f};
KV_TABLE float book4_unit = 46.4760612f;

/* levels 0.245094, 0.756005, 1.343909, 2.151946 */
KV_TABLE int8_t book3[16] = {-127, -79, -45, -14, 14, 45, 79, 127, -127, -79, -45, -14, 14, 45, 79, 127};
KV_TABLE float book3_borders[7] = {-103.0f, -62.0f, -29.5f, 0.0f, 29.5f, 62.0f, 103.0f};
KV_TABLE float book3_unit = 59.0163589f;

/* element e is negated when bit e % 32 of word e / 32 is set */
KV_TABLE uint32_t sign_bits[24] = {0x05fbf281u, 0x3aaabaecu, 0xc2b3f16du, 0x56d1212eu, 0xbc826c2fu, 0x411a25eau, 0x5c61e6cbu, 0xf362f94eu,
    0xe7654088u, 0x11e3873cu, 0x36d65e2du, 0x0ae49f19u, 0x63ae3869u, 0xe746aed4u, 0x0ded4d0cu, 0x361833bbu,
    0x785524f7u, 0x5247b86fu, 0x0367eeeau, 0xd1e39dd1u, 0xa737e0a0u, 0xc4f55dc2u, 0x2b03c249u, 0x1b60acf6u};

#endif
