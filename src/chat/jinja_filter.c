/* chat/jinja_filter.c - the table of filters: names, parameters, functions; what is refused is refused here, by name. */
#include "chat/jinja_filters.h"

static const struct jfunc_row filters[] = {
    {.name = "abs", .fn = jfilter_abs, .params = ""},
    {.name = "attr", .fn = jfilter_attr, .params = "name", .min = 1},
    {.name = "batch", .fn = jfilter_batch, .params = "linecount|fill_with", .min = 1},
    {.name = "capitalize", .fn = jfilter_capitalize, .params = ""},
    {.name = "center", .fn = jfilter_center, .params = "width"},
    {.name = "count", .fn = jfilter_length, .params = ""},
    {.name = "d", .fn = jfilter_default, .params = "default_value|boolean"},
    {.name = "default", .fn = jfilter_default, .params = "default_value|boolean"},
    {.name = "dictsort", .fn = jfilter_dictsort, .params = "case_sensitive|by|reverse"},
    {.name = "e", .fn = jfilter_escape, .params = ""},
    {.name = "escape", .fn = jfilter_escape, .params = ""},
    {.name = "filesizeformat", .fn = jfilter_filesizeformat, .params = "binary"},
    {.name = "first", .fn = jfilter_first, .params = ""},
    {.name = "float", .fn = jfilter_float, .params = "default"},
    {.name = "forceescape", .fn = jfilter_forceescape, .params = ""},
    {.name = "format", .raw = jfilter_format},
    {.name = "groupby", .fn = jfilter_groupby, .params = "attribute|default|case_sensitive", .min = 1},
    {.name = "indent", .fn = jfilter_indent, .params = "width|first|blank"},
    {.name = "int", .fn = jfilter_int, .params = "default|base"},
    {.name = "items", .fn = jfilter_items, .params = ""},
    {.name = "join", .fn = jfilter_join, .params = "d|attribute"},
    {.name = "last", .fn = jfilter_last, .params = ""},
    {.name = "length", .fn = jfilter_length, .params = ""},
    {.name = "list", .fn = jfilter_list, .params = ""},
    {.name = "lower", .fn = jfilter_lower, .params = ""},
    {.name = "map", .raw = jfilter_map},
    {.name = "max", .fn = jfilter_max, .params = "case_sensitive|attribute"},
    {.name = "min", .fn = jfilter_min, .params = "case_sensitive|attribute"},
    {.name = "pprint", .raw = jfilter_map, .refused = "it is for debugging"},
    {.name = "random", .raw = jfilter_map, .refused = "its result is random"},
    {.name = "reject", .raw = jfilter_reject},
    {.name = "rejectattr", .raw = jfilter_rejectattr},
    {.name = "replace", .fn = jfilter_replace, .params = "old|new|count", .min = 2},
    {.name = "reverse", .fn = jfilter_reverse, .params = ""},
    {.name = "round", .fn = jfilter_round, .params = "precision|method"},
    {.name = "safe", .fn = jfilter_safe, .params = ""},
    {.name = "select", .raw = jfilter_select},
    {.name = "selectattr", .raw = jfilter_selectattr},
    {.name = "slice", .fn = jfilter_slice, .params = "slices|fill_with", .min = 1},
    {.name = "sort", .fn = jfilter_sort, .params = "reverse|case_sensitive|attribute"},
    {.name = "string", .fn = jfilter_string, .params = ""},
    {.name = "striptags", .raw = jfilter_map, .refused = "it is for HTML pages"},
    {.name = "sum", .fn = jfilter_sum, .params = "attribute|start"},
    {.name = "title", .fn = jfilter_title, .params = ""},
    {.name = "tojson", .fn = jfilter_tojson, .params = "ensure_ascii|indent|separators|sort_keys"},
    {.name = "trim", .fn = jfilter_trim, .params = "chars"},
    {.name = "truncate", .fn = jfilter_truncate, .params = "length|killwords|end|leeway"},
    {.name = "unique", .fn = jfilter_unique, .params = "case_sensitive|attribute"},
    {.name = "upper", .fn = jfilter_upper, .params = ""},
    {.name = "urlencode", .fn = jfilter_urlencode, .params = ""},
    {.name = "urlize", .raw = jfilter_map, .refused = "it is for HTML pages"},
    {.name = "wordcount", .fn = jfilter_wordcount, .params = ""},
    {.name = "wordwrap", .raw = jfilter_map, .refused = "it wraps text for terminals"},
    {.name = "xmlattr", .raw = jfilter_map, .refused = "it is for HTML pages"},
};

int jfilter_find(struct str name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (str_is(name, filters[i].name))
            return (int)i;
    return -1;
}

struct jv jfilter_call(struct jx *jx, int entry, struct jv self, const struct jargs *args)
{
    return jcall_row(jx, &filters[entry], self, args);
}
