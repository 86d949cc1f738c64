/* backend_cpu/probe_512.h - probe_vec.h on 16 lanes, for the levels that have them: their INT8_DOT stands before it. */
#define VEC __m512
#define VEC_BITS __m512i
#define MM(op) _mm512_##op
#define WHOLE(op) _mm512_##op##_si512
#define LOW128 _mm512_castsi512_si128
#define BITS_OF _mm512_castps_si512
#include "backend_cpu/probe_vec.h"
