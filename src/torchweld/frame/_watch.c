/* Dict versions: CPython 3.11 numbers every state of every dict itself; from 3.12 on one dict
   watcher keeps such numbers for the dicts that some guard follows, in a hash table by address. */
#include "_frame.h"

#if TW_HAS_WATCHERS

struct TwWatch {
    PyObject *dict;             /* borrowed; NULL once it was deallocated */
    uint64_t version;
    Py_ssize_t followers;
    TwWatch *next;              /* in its bucket */
};

static struct {
    TwWatch **buckets;
    size_t n_buckets, n_watches;
    uint64_t last_version;
    int watcher;                /* the slot we own, or -1: then nothing is ever skipped */
} table = {.watcher = -1};

static size_t
bucket_of(const PyObject *dict, size_t n_buckets)
{
    uintptr_t x = (uintptr_t)dict;
    return ((x >> 4) ^ (x >> 14)) & (n_buckets - 1);
}

static TwWatch **
find(const PyObject *dict)
{
    TwWatch **at = &table.buckets[bucket_of(dict, table.n_buckets)];

    while (*at != NULL && (*at)->dict != dict) {
        at = &(*at)->next;
    }
    return at;
}

static bool
grow(void)
{
    size_t n = table.n_buckets ? table.n_buckets * 2 : 64;
    TwWatch **buckets = PyMem_Calloc(n, sizeof(*buckets));

    if (buckets == NULL) {
        return false;
    }
    for (size_t i = 0; i < table.n_buckets; i++) {
        for (TwWatch *w = table.buckets[i], *next; w != NULL; w = next) {
            TwWatch **head = &buckets[bucket_of(w->dict, n)];
            next = w->next;
            w->next = *head;
            *head = w;
        }
    }
    PyMem_Free(table.buckets);
    table.buckets = buckets;
    table.n_buckets = n;
    return true;
}

/* Runs before the change is made. It may not run Python, nor fail. */
static int
on_dict_event(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    TwWatch **at = find(dict), *w = *at;

    if (w == NULL) {
        return 0;
    }
    w->version = ++table.last_version;
    if (event == PyDict_EVENT_DEALLOCATED) {
        *at = w->next;
        w->dict = NULL;
        table.n_watches--;
    }
    return 0;
}

int
tw_watch_init(void)
{
    if (!grow()) {
        PyErr_NoMemory();
        return -1;
    }
    table.watcher = PyDict_AddWatcher(on_dict_event);
    if (table.watcher < 0) {
        PyErr_Clear();          /* all slots are taken: every guard is then checked at every call */
    }
    return 0;
}

uint64_t
tw_dict_version(TwWatch *watch, PyObject *dict)
{
    return watch != NULL && watch->dict == dict ? watch->version : 0;
}

void
tw_dict_unfollow(TwWatch **watch)
{
    TwWatch *w = *watch;

    *watch = NULL;
    if (w == NULL || --w->followers > 0) {
        return;
    }
    if (w->dict != NULL) {
        *find(w->dict) = w->next;
        table.n_watches--;
        if (PyDict_Unwatch(table.watcher, w->dict) < 0) {
            PyErr_Clear();
        }
    }
    PyMem_Free(w);
}

const void *
tw_dict_version_word(TwWatch *watch, PyObject *dict)
{
    return watch != NULL && watch->dict == dict ? &watch->version : NULL;
}

static TwWatch *
watch_new(PyObject *dict)
{
    TwWatch *w, **at;

    if (table.n_watches >= table.n_buckets && !grow()) {
        return NULL;
    }
    w = PyMem_Calloc(1, sizeof(*w));
    if (w == NULL) {
        return NULL;
    }
    if (PyDict_Watch(table.watcher, dict) < 0) {
        PyErr_Clear();
        PyMem_Free(w);
        return NULL;
    }
    w->dict = dict;
    w->version = ++table.last_version;
    at = find(dict);
    w->next = *at;
    *at = w;
    table.n_watches++;
    return w;
}

uint64_t
tw_dict_follow(TwWatch **watch, PyObject *dict)
{
    TwWatch *w;

    if (table.watcher < 0) {
        return 0;
    }
    if (tw_inline_stores_are_silent() && tw_dict_has_inline_values(dict)) {
        return 0;
    }
    if (*watch != NULL && (*watch)->dict == dict) {
        return (*watch)->version;
    }
    tw_dict_unfollow(watch);
    w = *find(dict);
    if (w == NULL) {
        w = watch_new(dict);
    }
    if (w == NULL) {
        return 0;
    }
    w->followers++;
    *watch = w;
    return w->version;
}

#else

int
tw_watch_init(void)
{
    return 0;
}

uint64_t
tw_dict_version(TwWatch *watch, PyObject *dict)
{
    return tw_dict_version_tag(dict);
}

uint64_t
tw_dict_follow(TwWatch **watch, PyObject *dict)
{
    return tw_dict_version_tag(dict);
}

void
tw_dict_unfollow(TwWatch **watch)
{
}

const void *
tw_dict_version_word(TwWatch *watch, PyObject *dict)
{
    return tw_dict_version_tag_word(dict);
}

#endif
