/* Wire statuses (the numbers of protocol.fbs) and the native layer's own. */
#define FBK_S_OK 0
#define FBK_S_BAD_REQUEST 1
#define FBK_S_UNSUPPORTED 2
#define FBK_S_NOT_READY 3
#define FBK_S_NO_LEDGER 10
#define FBK_S_NO_ENTRY 11
#define FBK_S_CANNOT_TELL 12
#define FBK_S_FENCED 20
#define FBK_S_UNAUTHORIZED 21
#define FBK_S_CONFLICT 22
#define FBK_S_BAD_DIGEST 23
#define FBK_S_READ_ONLY 24
#define FBK_S_TOO_MANY_REQUESTS 25
#define FBK_S_TOO_LARGE 26
#define FBK_S_OTHER_CREATION 27
#define FBK_S_FORBIDDEN 28
#define FBK_S_IO_ERROR 30
/* Verdicts in a batch descriptor's exceptions that are not statuses. */
#define FBK_V_CHECK 1000
#define FBK_V_ORDERED 1001

#define FBK_DIGEST_NONE 0
#define FBK_DIGEST_CRC32 1
#define FBK_DIGEST_HMAC 2
#define FBK_DIGEST_CRC32C 3
#define FBK_DIGEST_DUMMY 4

/* Returned by native functions: >= 0 a count, -1..-4095 -errno, below that one of these. */
#define FBK_E_CORRUPT -10001
#define FBK_E_TOO_NEW -10002
#define FBK_E_FULL -10003
#define FBK_E_POISONED -10004
#define FBK_E_STOPPED -10005
#define FBK_E_PROTOCOL -10006
#define FBK_E_LAYOUT -10007
#define FBK_E_REWRITTEN -10008
