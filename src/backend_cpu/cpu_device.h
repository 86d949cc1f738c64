/* backend_cpu/cpu_device.h - the device's own parts; only cpu_device.c and cpu_queue.c include it. */
#ifndef RH_CPU_DEVICE_H
#define RH_CPU_DEVICE_H

#include "backend_cpu/backend_cpu.h"
#include "backend_cpu/cpu_int.h"

enum {
    CPU_RING = 2048, /* two steps of most models: one that runs and one that is held */
    CPU_THREADS_MAX = 512,
    CPU_WAKE_AFTER = 8,           /* records of a step that was let go before the engine's thread is woken: kernels run by then */
    CPU_FETCH_RECORDS = 4,        /* how far ahead reads are looked for */
    CPU_FETCH_BYTES = 128 << 10,  /* of them, a worker: a quarter of a second-level cache */
};

/* run == NULL: a mark (an event). */
struct cpu_record {
    cpu_run run;
    cpu_reads reads; /* NULL: nothing worth asking for early */
    const char *name;
    _Alignas(16) unsigned char op[CPU_OP_BYTES];
};

/* Records past held_from: none; not to be published; to be asked about by the worker that ends the one before; published by it. */
enum cpu_hold { CPU_FREE, CPU_HELD, CPU_ASK, CPU_WENT };

/* Where all workers meet: the last to arrive opens the next generation. */
struct cpu_meet {
    _Alignas(128) _Atomic uint32_t arrived;
    _Alignas(128) _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
};

/* The ring.  head: the engine's thread; published: it stores, workers load, and what is held lies past it; completed: stored by a worker that has just seen all
 * others finish the record.  The two words are futexes: they change after the counter they stand for. */
struct cpu_queue {
    struct cpu_record *ring; /* [CPU_RING] */
    uint64_t head;
    uint64_t held_from, held_to; /* engine's thread, before CPU_ASK */
    bool (*ask)(void *ctx);
    void *ask_ctx;
    _Alignas(128) _Atomic uint64_t published;
    _Atomic uint32_t published_word, published_sleepers;
    _Alignas(128) _Atomic uint64_t completed;
    _Atomic uint64_t wake_at; /* the count the engine's thread sleeps for; UINT64_MAX: it does not */
    _Atomic uint32_t hold;    /* enum cpu_hold */
    uint64_t wake_after;      /* workers, one at a time: the engine's thread sleeps on until so many are completed */
    _Atomic uint32_t completed_word;
    _Atomic bool stop;
    struct cpu_meet meet;
    int64_t spin_ns;          /* how long a wait spins before it sleeps */
    uint32_t cpus_left;       /* CPUs that never spin; 0: all workers may */
};

/* the first failure since the last event_wait that reported one; under lock */
struct cpu_failure {
    pthread_mutex_t lock;
    int code;
    uint64_t record; /* index of the record that failed */
    char text[256];
};

/* what a worker asks for ahead of the record that reads it */
struct cpu_fetch {
    uint64_t record;         /* whose reads these are; up to the running one: look for another */
    uint32_t pieces;         /* asked for, or begun */
    const unsigned char *at; /* of the piece that was begun */
    size_t left;
    size_t room;             /* bytes that may still be asked for */
};

struct cpu_worker {
    struct device *d;
    uint32_t me;
    uint64_t at;             /* the record it runs */
    int64_t left, record_left; /* profile: when it left the last kernel, and the last record; 0: none yet */
    uint32_t edge;           /* profile: the next mark's */
    bool marked;             /* profile: no kernel since the mark */
    struct cpu_fetch fetch;
    pthread_t thread;
    bool started;
};

/* What a worker has left of a record's items (cpu_deal.c). */
struct cpu_hand {
    _Alignas(128) _Atomic uint64_t word;
    uint16_t round; /* of the worker's own last deal */
};

/* Memory of weights, many to a mapping (cpu_slab.c). */
struct cpu_slab;
struct cpu_slabs {
    struct cpu_slab *open; /* where the next weight goes */
    size_t next_bytes;     /* size of the next slab */
};

/* Weights on their way into panels (cpu_pack.c): those no record names yet, and those of records that may still run. */
struct cpu_packing {
    struct weight *waiting, *waiting_last;
    struct weight *running;
    uint64_t running_until; /* completed >= this: none of them runs */
};

/* process or model lifetime; owned by whoever opened it */
struct device {
    struct device_head head;
    struct cpu_kernels kernels;
    const char *level;
    uint32_t n_threads;
    bool pin;
    struct cpu_worker *workers; /* [n_threads] */
    struct cpu_hand *hands;     /* [n_threads] */
    struct cpu_queue queue;
    struct cpu_failure failure;
    struct cpu_profile *profile; /* NULL: off; set while the queue is idle */
    struct cpu_slabs slabs;
    struct cpu_packing packing;
    struct device_reserve reserved;
    struct cpu_need need;       /* what the scratch areas hold */
    size_t worker_stride;
    unsigned char *scratch;     /* [n_threads][worker_stride], then the shared area */
    size_t scratch_bytes;
};

/* cpu_queue.c: the pool's life */
int cpu_queue_start(struct device *d, struct err *err);
void cpu_queue_stop(struct device *d); /* runs what was enqueued, then ends the workers; legal after a failed start */

/* cpu_queue.c: events of the table */
int cpu_event_record(struct device *d, uint64_t *out);
int cpu_event_wait(struct device *d, uint64_t event, struct err *err);
bool cpu_event_done(struct device *d, uint64_t event);
uint64_t cpu_progress(struct device *d);
void cpu_flush(struct device *d);
void cpu_hold(struct device *d);
void cpu_hold_ask(struct device *d, bool (*ask)(void *ctx), void *ctx);
bool cpu_hold_went(struct device *d);
void cpu_hold_end(struct device *d, bool run);

/* cpu_slab.c: NULL when out of memory; zeroed, 64-byte aligned */
unsigned char *cpu_slab_take(struct cpu_slabs *s, size_t size_bytes, struct cpu_slab **slab);
void cpu_slab_give(struct cpu_slabs *s, struct cpu_slab *slab); /* one taking less; the last unmaps it */

/* cpu_pack.c */
void cpu_pack_put(struct device *d, struct weight *w);  /* waits for the next record */
int cpu_pack_flush(struct device *d);                   /* one record for all that wait; before anything is enqueued behind them */
void cpu_pack_settle(struct device *d);                 /* forget what is done; after waits */

#endif
