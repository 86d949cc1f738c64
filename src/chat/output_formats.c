/* chat/output_formats.c - the output formats: what each model family's markers are, as data. */
#include "chat/output_int.h"

static const struct output_format formats[] = {
    {.name = "none"},
};

const struct output_format *output_format_at(size_t i)
{
    return i < sizeof formats / sizeof *formats ? &formats[i] : NULL;
}

const struct output_format *output_format_find(struct str name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (str_is(name, formats[i].name))
            return &formats[i];
    return NULL;
}

const struct output_format *output_format_of_template(struct str source)
{
    (void)source;
    return formats;
}

const char *output_format_name(const struct output_format *f)
{
    return f->name;
}
