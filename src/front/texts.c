/* front/texts.c - what a model's files say about text: its tokenizer and its chat template, opened beside the weights. */
#include "front/front_int.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "format/safetensors.h"

#include <time.h>

/* chat_template.jinja, else "chat_template" of tokenizer_config.json: a text, or a list of named ones ("default" is meant). */
static int template_of_dir(struct hfdir *dir, yyjson_val *tokenizer_config, struct str *out, struct err *err)
{
    size_t i, n;
    yyjson_val *item, *v = yyjson_obj_get(tokenizer_config, "chat_template");
    int rc = hfdir_file(dir, "chat_template.jinja", out, err);
    if (rc || out->p)
        return rc;
    if (yyjson_is_str(v))
        *out = json_str(v);
    yyjson_arr_foreach(v, i, n, item)
        if (str_is(json_str(yyjson_obj_get(item, "name")), "default"))
            *out = json_str(yyjson_obj_get(item, "template"));
    return 0;
}

static void open_template(struct texts *t, struct str source)
{
    t->template_bytes = source.n;
    t->output = output_format_of_template(source);
    for (size_t i = 0; output_format_at(i) && i < OUTPUT_FORMATS_MAX; i++)
        t->call_forms[i] = output_format_call(output_format_at(i), source);
    if (source.p == NULL)
        err_set(&t->chat_err, ERR_NOT_FOUND, "the model has no chat template; one can be given (--chat-template FILE)");
    else if (chat_template_open(source, &t->chat, &t->chat_err))
        err_prefix(&t->chat_err, "chat template");
}

static int open_gguf(struct texts *t, const char *path, const char *override, struct err *err)
{
    struct str source = {0};
    int rc = gguf_open(path, &t->gguf, err);
    if (rc == 0 && (rc = tokenizer_open_gguf(t->gguf, &t->tokenizer, err)))
        err_prefix(err, "%s", path);
    if (rc == 0)
        rc = gguf_get_str(t->gguf, "tokenizer.chat_template", &source, err);
    if (rc == 0)
        open_template(t, override ? str_of(override) : source);
    return rc;
}

static int open_dir(struct texts *t, const char *path, const char *override, struct err *err)
{
    struct str tokenizer = {0}, config = {0}, source = {0};
    yyjson_doc *doc = NULL;
    int rc = hfdir_open(path, &t->hfdir, err);
    if (rc == 0)
        rc = hfdir_file(t->hfdir, "tokenizer.json", &tokenizer, err);
    if (rc == 0)
        rc = hfdir_file(t->hfdir, "tokenizer_config.json", &config, err);
    if (rc == 0 && tokenizer.p == NULL)
        rc = err_set(err, ERR_NOT_FOUND, "%s: tokenizer.json is missing", path);
    if (rc == 0 && (rc = tokenizer_open_json(tokenizer, config, &t->tokenizer, err)))
        err_prefix(err, "%s", path);
    if (rc == 0 && config.p && !(doc = json_parse(config, "tokenizer_config.json", err))) {
        err_prefix(err, "%s", path);
        rc = ERR_FORMAT;
    }
    if (rc == 0)
        rc = template_of_dir(t->hfdir, yyjson_doc_get_root(doc), &source, err);
    if (rc == 0)
        open_template(t, override ? str_of(override) : source);
    json_free(doc);
    return rc;
}

int texts_open(struct texts *t, const char *path, const char *template_source, struct err *err)
{
    int rc = file_is_dir(path) ? open_dir(t, path, template_source, err) : open_gguf(t, path, template_source, err);
    if (rc)
        return rc;
    tokenizer_info(t->tokenizer, &t->info);
    embedding_read(t);
    return 0;
}

const char *texts_call_form(const struct texts *t, const struct output_format *f)
{
    for (size_t i = 0; output_format_at(i) && i < OUTPUT_FORMATS_MAX; i++)
        if (output_format_at(i) == f)
            return t->call_forms[i];
    return NULL;
}

void texts_close(struct texts *t)
{
    chat_template_close(t->chat);
    tokenizer_close(t->tokenizer);
    gguf_close(t->gguf);
    hfdir_close(t->hfdir);
    *t = (struct texts){0};
}

static struct str piece_of(const struct texts *t, int64_t id)
{
    return id < 0 ? (struct str){0} : tokenizer_piece(t->tokenizer, (uint32_t)id);
}

/* text -> document of the wanted kind; NULL text = NULL document. */
static int parse_part(struct rh_text text, const char *what, bool object, yyjson_doc **doc, struct err *err)
{
    *doc = NULL;
    if (text.p == NULL)
        return 0;
    *doc = json_parse(front_str(text), what, err);
    if (!*doc)
        return ERR_FORMAT;
    yyjson_val *root = yyjson_doc_get_root(*doc);
    if (object ? yyjson_is_obj(root) : yyjson_is_arr(root))
        return 0;
    return err_set(err, ERR_ARGUMENT, "%s: expected %s, got %s", what, object ? "an object" : "an array", json_type_name(root));
}

int texts_render(const struct texts *t, const struct rh_chat *chat, struct chat_rendered *out, struct err *err)
{
    yyjson_doc *messages = NULL, *tools = NULL, *variables = NULL;
    if (!t->chat)
        return err_set(err, t->chat_err.code, "%s", t->chat_err.text);
    int rc = chat->messages_json.p ? parse_part(chat->messages_json, "messages", false, &messages, err)
                                   : err_set(err, ERR_ARGUMENT, "messages: expected an array, got nothing");
    if (rc == 0)
        rc = parse_part(chat->tools_json, "tools", false, &tools, err);
    if (rc == 0)
        rc = parse_part(chat->variables_json, "template variables", true, &variables, err);
    if (rc == 0) {
        yyjson_val *list = yyjson_doc_get_root(tools);
        struct chat_render_input in = {.messages = yyjson_doc_get_root(messages), .tools = yyjson_arr_size(list) ? list : NULL,
                                       .variables = yyjson_doc_get_root(variables), .bos_token = piece_of(t, t->info.bos),
                                       .eos_token = piece_of(t, t->info.eos), .unk_token = piece_of(t, t->info.unk),
                                       .pad_token = piece_of(t, t->info.pad), .add_generation_prompt = !chat->no_generation_prompt,
                                       .now_s = (int64_t)time(NULL)};
        rc = chat_template_render(t->chat, &in, out, err);
    }
    json_free(messages);
    json_free(tools);
    json_free(variables);
    return rc;
}

uint64_t texts_bytes(const struct texts *t)
{
    return (uint64_t)t->info.vocab_size * 96 + (uint64_t)t->info.merge_count * 24 + 16 * t->template_bytes;
}
