/* What a process asks of the kernel that Python's standard library cannot. */

/* The calling process is killed (SIGKILL) as soon as the thread that started it ends. Returns 0 or
 * -errno. */
int32_t fbk_process_die_with_parent(void);
/* No new privileges for it and its children, and unless is_dumpable nobody of its user reads its
 * memory. Returns 0 or -errno. */
int32_t fbk_process_confine(int32_t is_dumpable);
/* The calling thread's disk requests come behind all others of the default class, its computing
 * behind theirs, too.  Hints: refused ones are passed over. */
void fbk_process_lower_thread(void);
