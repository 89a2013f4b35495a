/* SPDX-License-Identifier: Apache-2.0 */
#include "merge.h"

#include <stdlib.h>

int merger_start(merger *of, const char *text, size_t n_bytes) {
    if (n_bytes >= UINT32_MAX)
        return -1;
    if (n_bytes > of->n_symbols_allocated) {
        free(of->symbols);
        of->n_symbols_allocated = n_bytes < 256 ? 256 : n_bytes;
        of->symbols = malloc(of->n_symbols_allocated * sizeof *of->symbols);
        if (!of->symbols) {
            of->n_symbols_allocated = 0;
            return -1;
        }
    }
    of->text = text;
    of->n_bytes = (uint32_t)n_bytes;
    of->n_heap = 0;
    return 0;
}

void merger_close(merger *of) {
    free(of->symbols);
    free(of->heap);
}

static int comes_before(const merge_candidate *a, const merge_candidate *b) {
    return a->key != b->key ? a->key < b->key : a->at < b->at;
}

static int push(merger *of, merge_candidate candidate) {
    if (of->n_heap == of->n_heap_allocated) {
        size_t n = of->n_heap_allocated ? of->n_heap_allocated * 2 : 256;
        merge_candidate *heap = realloc(of->heap, n * sizeof *heap);
        if (!heap)
            return -1;
        of->heap = heap;
        of->n_heap_allocated = n;
    }
    size_t at = of->n_heap++;
    for (; at > 0 && comes_before(&candidate, &of->heap[(at - 1) / 2]); at = (at - 1) / 2)
        of->heap[at] = of->heap[(at - 1) / 2];
    of->heap[at] = candidate;
    return 0;
}

static merge_candidate pop(merger *of) {
    merge_candidate top = of->heap[0], last = of->heap[--of->n_heap];
    size_t at = 0;
    for (size_t child = 1; child < of->n_heap; child = 2 * at + 1) {
        if (child + 1 < of->n_heap && comes_before(&of->heap[child + 1], &of->heap[child]))
            child++;
        if (!comes_before(&of->heap[child], &last))
            break;
        of->heap[at] = of->heap[child];
        at = child;
    }
    of->heap[at] = last;
    return top;
}

/* Note the merge of the symbol at `left` with the next one, if there is such a merge. */
static int consider(merger *of, uint32_t left, merge_rule *rule, const void *vocabulary) {
    uint32_t right = left + of->symbols[left].length;
    if (right >= of->n_bytes)
        return 0;
    merge_candidate candidate = {.at = left, .length = of->symbols[left].length + of->symbols[right].length};
    return rule(vocabulary, of, left, right, &candidate) ? push(of, candidate) : 0;
}

/* Symbols only grow, so two neighbours still are what they were if they still are as long as they were together. */
static int is_current(const merger *of, const merge_candidate *candidate) {
    const merge_symbol *left = &of->symbols[candidate->at];
    uint32_t right = candidate->at + left->length;
    return left->length > 0 && right < of->n_bytes && left->length + of->symbols[right].length == candidate->length;
}

static void apply(merger *of, const merge_candidate *candidate) {
    merge_symbol *left = &of->symbols[candidate->at];
    of->symbols[candidate->at + left->length].length = 0;
    left->length = candidate->length;
    left->id = candidate->id;
    if (candidate->at + candidate->length < of->n_bytes)
        of->symbols[candidate->at + candidate->length].previous = candidate->at;
}

int merger_run(merger *of, merge_rule *rule, const void *vocabulary) {
    for (uint32_t at = 0; at < of->n_bytes; at += of->symbols[at].length)
        if (consider(of, at, rule, vocabulary))
            return -1;
    while (of->n_heap > 0) {
        merge_candidate best = pop(of);
        if (!is_current(of, &best))
            continue;
        apply(of, &best);
        if (best.at > 0 && consider(of, of->symbols[best.at].previous, rule, vocabulary))
            return -1;
        if (consider(of, best.at, rule, vocabulary))
            return -1;
    }
    return 0;
}
