/* chat/output_schema.c - which JSON types a tool's schema allows for each of its arguments.
 *
 * Read once at open and kept as a flat list; what a schema says in ways not looked at (several levels of references, conditions) is
 * unknown, which allows all types.  Nothing here validates. */
#include "chat/output_int.h"

#include "base/mem.h"

enum { REFS_MAX = 8, BRANCHES_MAX = 64 };

struct entry { /* an argument of a tool, or (key.p NULL) the tool itself */
    struct str tool, key;
    uint32_t types;
};
struct output_schema { /* owns entries and the names they point to */
    struct entry *entries;
    size_t n, cap;
    struct buf names;
};

void schema_close(struct output_schema *s)
{
    if (!s)
        return;
    mem_free(s->entries);
    buf_free(&s->names);
    mem_free(s);
}

static unsigned type_named(struct str name)
{
    static const struct {
        const char *name;
        unsigned type;
    } list[] = {{"string", TYPE_STRING}, {"number", TYPE_NUMBER}, {"integer", TYPE_NUMBER}, {"boolean", TYPE_BOOL},
                {"null", TYPE_NULL},     {"object", TYPE_OBJECT}, {"array", TYPE_ARRAY}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (str_is(name, list[i].name))
            return list[i].type;
    return 0;
}

static unsigned type_of_value(yyjson_val *v)
{
    return yyjson_is_str(v)    ? TYPE_STRING
           : yyjson_is_num(v)  ? TYPE_NUMBER
           : yyjson_is_bool(v) ? TYPE_BOOL
           : yyjson_is_null(v) ? TYPE_NULL
           : yyjson_is_obj(v)  ? TYPE_OBJECT
                               : TYPE_ARRAY;
}

/* "#/$defs/Name" inside the tool's parameters; NULL: not there. */
static yyjson_val *follow(yyjson_val *root, yyjson_val *schema)
{
    for (int i = 0; i < REFS_MAX; i++) {
        struct str ref = json_str(yyjson_obj_get(schema, "$ref"));
        if (!ref.p)
            return schema;
        if (ref.n < 2 || ref.p[0] != '#')
            return NULL;
        schema = yyjson_ptr_getn(root, ref.p + 1, ref.n - 1);
    }
    return NULL;
}

/* What the schema itself says, without branches; 0: nothing. */
static unsigned own_types(yyjson_val *schema)
{
    unsigned types = 0;
    size_t i, n;
    yyjson_val *v, *type = yyjson_obj_get(schema, "type"), *list = yyjson_obj_get(schema, "enum"), *one = yyjson_obj_get(schema, "const");
    if (yyjson_is_str(type))
        types = type_named(json_str(type));
    yyjson_arr_foreach(type, i, n, v)
        types |= type_named(json_str(v));
    if (!types && one)
        types = type_of_value(one);
    if (!types)
        yyjson_arr_foreach(list, i, n, v)
            types |= type_of_value(v);
    if (types && yyjson_is_true(yyjson_obj_get(schema, "nullable")))
        types |= TYPE_NULL;
    return types;
}

static unsigned types_of(yyjson_val *root, yyjson_val *schema)
{
    static const char *const branches[] = {"anyOf", "oneOf"};
    schema = follow(root, schema);
    unsigned types = own_types(schema);
    for (int b = 0; b < 2 && !types; b++) {
        size_t i, n;
        yyjson_val *v, *list = yyjson_obj_get(schema, branches[b]);
        if (yyjson_arr_size(list) > BRANCHES_MAX)
            return 0;
        yyjson_arr_foreach(list, i, n, v)
        {
            unsigned t = own_types(follow(root, v));
            if (!t)
                return 0;
            types |= t;
        }
    }
    if (!types && yyjson_arr_size(yyjson_obj_get(schema, "allOf")) == 1)
        types = own_types(follow(root, yyjson_arr_get_first(yyjson_obj_get(schema, "allOf"))));
    return types;
}

/* Names are offsets until all are there: the buffer moves. */
static int add(struct output_schema *s, struct str tool, struct str key, unsigned types)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 16;
        struct entry *more = cap > SIZE_MAX / sizeof *more ? NULL : mem_try_resize(s->entries, cap * sizeof *more);
        if (!more)
            return ERR_NOMEM;
        s->entries = more;
        s->cap = cap;
    }
    buf_str(&s->names, tool);
    buf_str(&s->names, key);
    s->entries[s->n++] = (struct entry){{NULL, tool.n}, {key.p ? "" : NULL, key.n}, types};
    return s->names.failed ? ERR_NOMEM : 0;
}

static int add_tool(struct output_schema *s, yyjson_val *tool)
{
    yyjson_val *function = yyjson_obj_get(tool, "function"), *key, *v;
    if (!yyjson_is_obj(function))
        function = tool;
    struct str name = json_str(yyjson_obj_get(function, "name"));
    yyjson_val *root = yyjson_obj_get(function, "parameters");
    if (!root)
        root = yyjson_obj_get(function, "input_schema");
    if (!name.p)
        return 0;
    int rc = add(s, name, (struct str){0}, 0);
    size_t i, n;
    yyjson_val *properties = yyjson_obj_get(follow(root, root), "properties");
    if (!yyjson_is_obj(properties))
        return rc;
    yyjson_obj_foreach(properties, i, n, key, v)
        rc = rc ? rc : add(s, name, str_n(yyjson_get_str(key), yyjson_get_len(key)), types_of(root, v));
    return rc;
}

int schema_open(yyjson_val *tools, struct output_schema **out, struct err *err)
{
    struct output_schema *s = mem_try_zero(1, sizeof *s);
    size_t i, n;
    yyjson_val *tool;
    int rc = s ? 0 : ERR_NOMEM;
    yyjson_arr_foreach(tools, i, n, tool)
        rc = rc ? rc : add_tool(s, tool);
    for (size_t k = 0, at = 0; rc == 0 && k < s->n; k++) {
        struct entry *e = &s->entries[k];
        e->tool.p = s->names.p + at;
        if (e->key.p)
            e->key.p = s->names.p + at + e->tool.n;
        at += e->tool.n + e->key.n;
    }
    if (rc) {
        schema_close(s);
        return err_nomem(err, "tools", 0);
    }
    *out = s;
    return 0;
}

int64_t schema_tool(const struct output_schema *s, struct str name)
{
    for (size_t i = 0; s && i < s->n; i++)
        if (!s->entries[i].key.p && str_eq(s->entries[i].tool, name))
            return (int64_t)i;
    return -1;
}

unsigned schema_types(const struct output_schema *s, int64_t tool, struct str key)
{
    if (tool < 0)
        return 0;
    for (size_t i = (size_t)tool + 1; i < s->n && s->entries[i].key.p; i++)
        if (str_eq(s->entries[i].key, key))
            return s->entries[i].types;
    return 0;
}
