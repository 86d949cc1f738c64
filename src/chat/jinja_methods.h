/* chat/jinja_methods.h - the methods of str, for the table in jinja_method.c. */
#ifndef RH_CHAT_JINJA_METHODS_H
#define RH_CHAT_JINJA_METHODS_H

#include "chat/jinja_int.h"

#define JMETHOD(name) struct jv jstrm_##name(struct jx *jx, struct jv v, struct jv *a)
#define JMETHOD_RAW(name) struct jv jstrm_##name(struct jx *jx, struct jv v, const struct jargs *args)

/* jinja_method_str.c: cutting, searching, joining */
JMETHOD(strip);
JMETHOD(lstrip);
JMETHOD(rstrip);
JMETHOD(split);
JMETHOD(rsplit);
JMETHOD(splitlines);
JMETHOD(startswith);
JMETHOD(endswith);
JMETHOD(find);
JMETHOD(rfind);
JMETHOD(index);
JMETHOD(rindex);
JMETHOD(count);
JMETHOD(replace);
JMETHOD(join);
JMETHOD(partition);
JMETHOD(rpartition);
JMETHOD(removeprefix);
JMETHOD(removesuffix);

/* jinja_method_case.c: case, padding, questions about characters */
JMETHOD(upper);
JMETHOD(lower);
JMETHOD(title);
JMETHOD(capitalize);
JMETHOD(swapcase);
JMETHOD(ljust);
JMETHOD(rjust);
JMETHOD(center);
JMETHOD(zfill);
JMETHOD(expandtabs);
JMETHOD(isalpha);
JMETHOD(isalnum);
JMETHOD(isdigit);
JMETHOD(isdecimal);
JMETHOD(isnumeric);
JMETHOD(isspace);
JMETHOD(isupper);
JMETHOD(islower);
JMETHOD(istitle);
JMETHOD(isascii);
JMETHOD(isprintable);
JMETHOD(isidentifier);

#endif
