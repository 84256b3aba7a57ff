/*
 * Prints what llama.cpp computes: logits MODEL.gguf TOKENS GENERATED < ids > logits
 *
 * Reads TOKENS ids (int32), generates GENERATED more greedily, one at a time, and writes the logits after each (float32).
 */
#include <stdio.h>
#include <stdlib.h>

#include "llama.h"

static void report(enum ggml_log_level level, const char *text, void *data) {
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int fail(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

static llama_token best(const float *logits, int size) {
    int found = 0;
    for (int token = 1; token < size; ++token)
        if (logits[token] > logits[found]) found = token;
    return found;
}

int main(int argc, char **argv) {
    if (argc != 4) return fail("expected MODEL TOKENS GENERATED");
    int prompt = atoi(argv[2]), total = prompt + atoi(argv[3]);
    llama_log_set(report, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return fail("llama.cpp does not read the file");
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = total;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context) return fail("llama.cpp does not run the network");

    int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_batch batch = llama_batch_init(total, 0, 1);
    llama_token *tokens = calloc(total, sizeof *tokens);
    if (fread(tokens, sizeof *tokens, prompt, stdin) != (size_t)prompt) return fail("expected more tokens");
    for (int done = 0, end = prompt; done < total; done = end++) {
        batch.n_tokens = end - done;
        for (int row = 0; row < batch.n_tokens; ++row) {
            batch.token[row] = tokens[done + row];
            batch.pos[row] = done + row;
            batch.n_seq_id[row] = 1;
            batch.seq_id[row][0] = 0;
            batch.logits[row] = 1;
        }
        if (llama_decode(context, batch)) return fail("llama.cpp did not compute the step");
        for (int row = 0; row < batch.n_tokens; ++row)
            fwrite(llama_get_logits_ith(context, row), sizeof(float), vocabulary, stdout);
        if (end < total) tokens[end] = best(llama_get_logits_ith(context, end - done - 1), vocabulary);
    }
    return 0;
}
