/* What a process asks of the kernel that Python's standard library cannot. */

/* The calling process is killed (SIGKILL) as soon as the thread that started it ends. Returns 0 or -errno. */
int32_t fbk_process_die_with_parent(void);
