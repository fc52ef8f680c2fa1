/* Kill points: named places where a test has a process end by SIGKILL.  See base/fault.h.
 * Decision 26. */

/* From now on this process dies at the `pass`-th time that it comes by the point `name`, and says
 * so in a new file at `path`; if that file is there already it goes on: once is enough, or the
 * restarted process would die again for ever. pass 0: it does not die, and adds one byte to that
 * file each time.  Before any thread is started. Returns 0, or -EINVAL for a name or path that is
 * empty or too long. */
int32_t fbk_kill_point_arm(const char *name, uint64_t pass, const char *path);

/* Comes by the point `name`; for Python's points.  Nothing happens unless that is the armed one. */
void fbk_kill_point_pass(const char *name);
