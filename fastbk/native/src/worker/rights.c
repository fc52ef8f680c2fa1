/* Which right each request needs (INV-N2): one table, for our protocol and Apache's.
 *
 * docs/authentication.md has the same table for operators, and a test compares them. */
#include "worker/worker.h"

#include "wire/schema.h"

/* By what a request is.  Taking over: a fence, or an add that recovers. */
struct needs {
    uint8_t usually, taking_over;
};

static const struct needs table[] = {
    [FBK_REQUEST_BODY_HELLO] = {0, 0},
    [FBK_REQUEST_BODY_ADD] = {FBK_RIGHT_ADD, FBK_RIGHT_RECOVER},
    [FBK_REQUEST_BODY_ADD_BATCH] = {FBK_RIGHT_ADD, FBK_RIGHT_RECOVER},
    [FBK_REQUEST_BODY_READ] = {FBK_RIGHT_READ, FBK_RIGHT_RECOVER},
    [FBK_REQUEST_BODY_READ_BATCH] = {FBK_RIGHT_READ, FBK_RIGHT_RECOVER},
    [FBK_REQUEST_BODY_READ_LAC] = {FBK_RIGHT_READ, FBK_RIGHT_READ},
    [FBK_REQUEST_BODY_WRITE_LAC] = {FBK_RIGHT_ADD, FBK_RIGHT_ADD},
    [FBK_REQUEST_BODY_FORCE] = {FBK_RIGHT_ADD, FBK_RIGHT_ADD},
    [FBK_REQUEST_BODY_LIST_ENTRIES] = {FBK_RIGHT_READ, FBK_RIGHT_READ},
    [FBK_REQUEST_BODY_INFO] = {FBK_RIGHT_ENTER, FBK_RIGHT_ENTER},
    [FBK_REQUEST_BODY_PING] = {FBK_RIGHT_ENTER, FBK_RIGHT_ENTER},
};

static uint8_t
right_for(uint32_t kind, bool takes_over)
{
    return takes_over ? table[kind].taking_over : table[kind].usually;
}

uint8_t
fbk_right_for(const struct fbk_request *request)
{
    const uint32_t kind = request->body_type;
    if (FBK_UNLIKELY(kind >= sizeof table / sizeof table[0]))
        return 0; /* of a later version: it is answered that it is not supported */
    const bool is_read = kind == FBK_REQUEST_BODY_READ;
    const bool is_add = kind == FBK_REQUEST_BODY_ADD || kind == FBK_REQUEST_BODY_ADD_BATCH;
    return right_for(kind, (is_read && request->flags & FBK_FLAG_FENCE) ||
                               (is_add && request->flags & FBK_FLAG_RECOVERY));
}

/* What we call an operation of Apache's. */
static uint32_t
kind_of(uint32_t operation)
{
    switch (operation) {
    case FBK_APACHE_AUTH:
    case FBK_APACHE_START_TLS: return FBK_REQUEST_BODY_HELLO;
    case FBK_APACHE_ADD: return FBK_REQUEST_BODY_ADD;
    case FBK_APACHE_READ: return FBK_REQUEST_BODY_READ;
    case FBK_APACHE_READ_BATCH: return FBK_REQUEST_BODY_READ_BATCH;
    case FBK_APACHE_READ_LAC: return FBK_REQUEST_BODY_READ_LAC;
    case FBK_APACHE_WRITE_LAC: return FBK_REQUEST_BODY_WRITE_LAC;
    case FBK_APACHE_FORCE: return FBK_REQUEST_BODY_FORCE;
    case FBK_APACHE_LIST: return FBK_REQUEST_BODY_LIST_ENTRIES;
    default: return FBK_REQUEST_BODY_INFO; /* what nobody knows has been refused by here */
    }
}

uint8_t
fbk_apache_right_for(const struct fbk_apache_request *message)
{
    const uint32_t kind = kind_of(message->operation);
    const uint32_t takes_over =
        kind == FBK_REQUEST_BODY_ADD ? FBK_APACHE_RECOVERY : FBK_APACHE_FENCE;
    return right_for(kind, message->flags & takes_over);
}
