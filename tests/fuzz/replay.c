/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over files, and over the files of directories, without a fuzzer. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static int n_inputs;

static int complain(const char *path) {
    fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
    return 1;
}

static int run_file(const char *path, size_t n_bytes) {
    FILE *file = fopen(path, "rb");
    /* Exactly as large as the input, so that a sanitizer sees the first byte read beyond it. */
    uint8_t *bytes = malloc(n_bytes);
    if (!file || (n_bytes > 0 && !bytes) || fread(bytes, 1, n_bytes, file) != n_bytes) {
        int failed = complain(path);
        if (file)
            fclose(file);
        free(bytes);
        return failed;
    }
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, n_bytes);
    free(bytes);
    n_inputs++;
    return 0;
}

static int run_directory(const char *path);

static int run_path(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0)
        return complain(path);
    return S_ISDIR(status.st_mode) ? run_directory(path) : run_file(path, (size_t)status.st_size);
}

static int run_directory(const char *path) {
    struct dirent **entries;
    int failed = 0, n = scandir(path, &entries, NULL, alphasort);
    if (n < 0)
        return complain(path);
    for (int i = 0; i < n; i++) {
        char inside[4096];
        if (entries[i]->d_name[0] != '.') {
            snprintf(inside, sizeof inside, "%s/%s", path, entries[i]->d_name);
            failed |= run_path(inside);
        }
        free(entries[i]);
    }
    free(entries);
    return failed;
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= run_path(argv[i]);
    printf("%d inputs\n", n_inputs);
    return failed || n_inputs == 0;
}
