/* tests/fuzz_replay.c - a fuzz target without a fuzzer: every file of the folders named, whole and cut short in seven places, once each.
 *
 * Linked with tests/fuzz/<target>.c where the compiler has no libFuzzer (the sanitizers' build); an input of more than 20 s ends the program. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_ROOM = 4096, CUTS = 8, INPUT_SECONDS = 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In memory of exactly its size, so that a byte read behind it is seen. */
static void input_run(const uint8_t *data, size_t size)
{
    uint8_t *own = malloc(size ? size : 1);
    if (own == NULL)
        exit(1);
    memcpy(own, data, size);
    alarm(INPUT_SECONDS);
    LLVMFuzzerTestOneInput(own, size);
    alarm(0);
    free(own);
}

static unsigned file_run(const char *path)
{
    FILE *f = fopen(path, "rb");
    long size = f != NULL && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    uint8_t *data = size >= 0 ? malloc((size_t)size + 1) : NULL;
    if (data == NULL || fseek(f, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    fclose(f);
    fprintf(stderr, "%s\n", path); /* the last one is the one that ended the program */
    for (size_t cut = 1; cut <= CUTS; cut++)
        input_run(data, (size_t)size * cut / CUTS);
    free(data);
    return CUTS;
}

static unsigned folder_run(const char *folder)
{
    DIR *dir = opendir(folder);
    unsigned inputs = 0;
    if (dir == NULL) {
        perror(folder);
        exit(1);
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[PATH_ROOM];
        if (e->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < PATH_ROOM)
            inputs += file_run(path);
    }
    closedir(dir);
    return inputs;
}

int main(int argc, char **argv)
{
    unsigned inputs = 0;
    for (int i = 1; i < argc; i++)
        inputs += folder_run(argv[i]);
    if (inputs == 0) {
        fprintf(stderr, "usage: %s FOLDER...        (of inputs)\n", argv[0]);
        return 2;
    }
    printf("%u passed, 0 failed\n", inputs);
    return 0;
}
