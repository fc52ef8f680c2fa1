/* What a process gives up for good once it is set up: paths, and system calls by its role.  Linux
 * only.
 *
 * Decision 119. */

#define FBK_PATH_READ 1  /* files and directories below it */
#define FBK_PATH_WRITE 2 /* the same, and to make, change, rename and delete them */

struct fbk_confine_path {
    const char *path; /* of a directory or file; one that is not there is passed over */
    uint32_t access;  /* FBK_PATH_* */
};

#define FBK_MAY_CONNECT 1 /* TCP, to anywhere */

/* The calling thread, and those that it starts from now on, open these paths only, and without
 * FBK_MAY_CONNECT connect to nobody (Landlock).  Descriptors that are open stay good.  Returns the
 * version of the kernel's interface, 0 where it has none, or -errno. */
int32_t fbk_confine_paths(const struct fbk_confine_path *paths, uint32_t count, uint32_t flags);

/* The version of the kernel's Landlock, or -errno. */
int32_t fbk_confine_version(void);

/* io_uring is not there for the process from now on (ENOSYS): of all roles the journal alone needs
 * it, and libraries would use it.  Returns 0 or -errno. */
int32_t fbk_confine_rings(void);

/* Loads a shared library for good, before fbk_confine_calls.  Returns 1, or 0 where it is not
 * there. */
int32_t fbk_confine_preload(const char *library);

/* All threads of the process make only the system calls of their role from now on (seccomp): others
 * fail with EPERM, and those that only an attacker makes end the process (SIGSYS).  No memory can
 * be made executable: libraries are loaded before.  role: FBK_ROLE_*, not of the supervisor; flags:
 * FBK_MAY_CONNECT, heeded of gc.  Returns 0 or -errno. */
int32_t fbk_confine_calls(uint32_t role, uint32_t flags);
