/* base/json.h - strict JSON reading on yyjson: depth and size capped before anything is walked, errors with line and column.
 *
 * Values are read with yyjson's own accessors (they are total: a NULL or wrong-typed value gives 0, NULL or an empty
 * iterator).  The helpers below add errors that name the key.  Thread: a document may be read by many threads, freed by one. */
#ifndef RH_BASE_JSON_H
#define RH_BASE_JSON_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

#include <yyjson.h>

enum { JSON_DEPTH_MAX = 128 };

/* Parse text (UTF-8, no trailing garbage).  NULL with err filled on failure.  Free with json_free. */
yyjson_doc *json_parse(struct str text, const char *where, struct err *err);
/* Likewise, of a file that Python's json wrote: Infinity, -Infinity and NaN are numbers.  No json_get_x takes them. */
yyjson_doc *json_parse_python(struct str text, const char *where, struct err *err);
void json_free(yyjson_doc *doc);

/* A value as JSON text.  Without memory nothing is appended and out->failed is set, as by any append. */
void json_put(struct buf *out, yyjson_val *v);

/* Text of a string value; {NULL,0} when it is not a string. */
struct str json_str(yyjson_val *v);

/* obj[key] with a type check: absent (or null) leaves *out alone and returns 0; a wrong type or range is ERR_FORMAT naming `where`
 * and the key. */
int json_get_u32(yyjson_val *obj, const char *key, uint32_t *out, const char *where, struct err *err);
int json_get_f32(yyjson_val *obj, const char *key, float *out, const char *where, struct err *err);
int json_get_f64(yyjson_val *obj, const char *key, double *out, const char *where, struct err *err);
int json_get_bool(yyjson_val *obj, const char *key, bool *out, const char *where, struct err *err);
int json_get_str(yyjson_val *obj, const char *key, struct str *out, const char *where, struct err *err);

const char *json_type_name(yyjson_val *v); /* "string", "number", "absent" ... for messages */

#endif
