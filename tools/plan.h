/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse plan`: will a model's requests fit, how fast will they be, and is the cache worth it. What is read
 * (presets, a config.json, a profile) becomes plain structs; all that is concluded from them is arithmetic without I/O.
 * Bytes are of one GPU and GB are 10^9 bytes unless said otherwise. docs/planning.md explains the method. */
#ifndef HISPARSE_PLAN_H
#define HISPARSE_PLAN_H

#include <jansson.h>

enum { PLAN_BLOCK = 64 /* entries of a block, as in the pages of the library */ };

/* ------------------------------------------------------------------------------------------------------ what is read
 * -- */

enum plan_format { PLAN_BF16, PLAN_FP8, PLAN_FP8_BLOCK, PLAN_FORMATS };
extern const char *const plan_format_name[PLAN_FORMATS];

/* A model. An entry is what one row holds: a token, or several that the model compressed. */
typedef struct plan_model {
    char id[64];
    int layers;                     /* all */
    int paged_layers;               /* whose rows the cache pages */
    int groups;                     /* of the paged layers: those that select for themselves */
    int group_layers;               /* most layers of a group */
    int selections;                 /* of a layer and request: 1, or one per KV head */
    int kv_shards;                  /* most GPUs that can share out the bytes of a row: KV heads; MLA 1 */
    int index_shards;               /* and of a selector's state */
    int entry_tokens;               /* tokens of an entry */
    int k;                          /* entries a selection has */
    double row_bytes[PLAN_FORMATS]; /* of an entry in a layer, all KV heads; 0: the model has no such rows */
    double index_bytes;             /* of an entry in a group: the selector's state, always on the GPU */
    double resident_rows;           /* rows a token has beside the paged ones, which stay on the GPU */
    double window_rows;             /* rows a request has on the GPU whatever its length */
    double parameters, routed_parameters, active_experts; /* the last: part of the routed experts a token takes */
    double shared_bytes, routed_bytes;                    /* of weights, published; 0: unknown */
    double attention_flop;       /* of a prompt's token, all layers: what does not depend on its place */
    double attention_flop_token; /* and what each token before it adds */
} plan_model;

/* One GPU and its way to host memory. */
typedef struct plan_machine {
    char id[64];
    double memory_bytes, memory_gb_s; /* of the GPU */
    double bf16_tflops, fp8_tflops;   /* dense */
    double link_rows_us;              /* rows at random places that a kernel reads in a us, while they are short */
    double link_gb_s;                 /* and the most bytes */
    double host_bytes;                /* of host memory a GPU has */
    char link_source[160];            /* where the link's figures come from */
} plan_machine;

/* All return an exit code after saying what is wrong. folder NULL: the presets that came with the program. word: an id,
 * or its beginning up to a '-'. A file of Hugging Face's kind counts as a model if its name ends in .json. */
int plan_read_model(const char *folder, const char *word, plan_model *model_out);
int plan_read_machine(const char *folder, const char *word, plan_machine *machine_out);
int plan_read_config(const char *path, plan_model *model_out);
int plan_read_profile(const char *path, plan_machine *machine); /* replaces the link's figures */

/* A JSON object out of a regular file of at most 4 MiB; NULL after the message. */
json_t *plan_load(const char *path);

/* ---------------------------------------------------------------------------------------------------- what is asked --
 */

enum { PLAN_CONTEXTS = 16 };

typedef struct plan_question {
    plan_model model;
    plan_machine machine;
    int gpus, tp;
    enum plan_format format;
    double weight_bits; /* 0: what is published, else 8 */
    double utilization; /* of a GPU's memory */
    double reserve_bytes;
    double host_bytes; /* 0: as the machine has */
    int n_contexts;
    double context[PLAN_CONTEXTS], share[PLAN_CONTEXTS]; /* tokens a request has in the end; shares add up to 1 */
    double output;                                       /* of these, generated; 0: prompts cost nothing */
    double requests;                                     /* at once, all GPUs; 0: as many as fit */
    double miss;                                         /* part of a selection; negative: by slots */
    int slabs;                                           /* the library's pools, not one of equal blocks */
    int apart;                                           /* rows of a group do not lie side by side */
} plan_question;

/* What holds for all models and machines; docs/planning.md says where it comes from. */
#define PLAN_LAYER_MS    0.13  /* of a layer beside its bytes: launches, small kernels */
#define PLAN_EXCHANGE_MS 0.10  /* of a layer between several GPUs */
#define PLAN_RESOLVE_MS  0.004 /* of a group's swap-in without misses: README.md, 3.9 us */
#define PLAN_EFFICIENCY  0.4   /* of the arithmetic that a data sheet promises */

/* --------------------------------------------------------------------------------------------------- what comes out --
 */

/* With `slots` entries per request and layer on the GPU; slots 0: everything there. */
typedef struct plan_answer {
    int slots;
    double block_bytes;              /* device: per block of entries, as allocated */
    double index_bytes;              /* of these, what the selector's state needs */
    double host_block_bytes;         /* host: per block */
    double fixed_bytes;              /* device: of a request, whatever its length */
    double device_bytes, host_bytes; /* of a request, mean of the contexts */
    double free_bytes, weight_bytes;
    double fit_device, fit_host, requests;       /* all GPUs; the last is what runs at once */
    double miss_percent, link_bytes, full_bytes; /* of a selection; a request and step; were every row missed */
    double memory_ms, compute_ms, fixed_ms, link_ms, exposed_ms; /* of a step */
    double token_ms, tokens_s;                                   /* between two tokens of a request; all GPUs */
    double even_tokens, even_requests; /* from which on it is better than everything on the GPU; NAN: never */
    const char *fit_limit, *step_limit;
} plan_answer;

/* Bytes and requests that fit; all that does not take time. 0 when not even the weights fit. */
int plan_capacity(const plan_question *q, int slots, plan_answer *out);
/* Device bytes of one request of that many tokens. */
double plan_request_bytes(const plan_question *q, int slots, double tokens);
/* Of a row in a layer; of a token's selector state, or an entry's, in all groups. */
double plan_row_bytes(const plan_question *q);
double plan_index_bytes(const plan_question *q);
/* Weights of one GPU; and of these the routed experts'. */
double plan_weight_bytes(const plan_question *q, double *routed_out);

/* Part of a selection that misses. */
double plan_miss(const plan_question *q, int slots, double tokens);
/* Time of a step and what follows, with out->requests requests at once. */
void plan_rate(const plan_question *q, plan_answer *out);

/* All of an answer. 0 when nothing fits. */
int plan_answer_for(const plan_question *q, int slots, plan_answer *out);
/* Numbers of slots that are tried: k, and twice the one before up to this. */
int plan_most_slots(const plan_question *q);
/* Slots with the most tokens a second; fewer where that costs less than 1%. */
int plan_choose_slots(const plan_question *q);
/* 1: worth it. The sentence says why, or why not. */
int plan_verdict(const plan_question *q, const plan_answer *resident, const plan_answer *sparse, char *text, int bytes);

#endif
