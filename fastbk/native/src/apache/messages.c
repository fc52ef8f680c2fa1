/* Apache's messages of version 3 as tables: numbers, kinds, what is required.  Nothing but data. */
#include "apache/messages.h"

#define BIT(slot) (1ull << (slot))
/* The bits from..to. */
#define BITS(from, to) ((BIT(to) - BIT(from)) | BIT(to))
#define COUNT(fields) ((uint32_t)(sizeof(fields) / sizeof(fields)[0]))
#define INT64 FBK_PROTOBUF_INT64
#define BYTES FBK_PROTOBUF_BYTES
#define ENUM FBK_PROTOBUF_ENUM
#define MESSAGE FBK_PROTOBUF_MESSAGE

enum {
    PROTOCOL_VERSION,
    OPERATION_TYPE,
    STATUS_CODE,
    READ_FLAG,
    ADD_FLAG
};

static const struct fbk_protobuf_enum enums[] = {
    [PROTOCOL_VERSION] = {{{1, 3}, {1, 0}, {1, 0}}},
    [OPERATION_TYPE] = {{{1, 12}, {1, 0}, {1, 0}}},
    [STATUS_CODE] = {{{0, 0}, {402, 404}, {501, 507}}},
    [READ_FLAG] = {{{1, 2}, {1, 0}, {1, 0}}},
    [ADD_FLAG] = {{{1, 1}, {1, 0}, {1, 0}}},
};

/* ------------ Request */

enum {
    REQUEST,
    HEADER,
    READ,
    ADD,
    AUTH,
    WRITE_LAC,
    READ_LAC,
    INFO,
    START_TLS,
    FORCE,
    LIST,
    CONTEXT,
    REQUEST_MESSAGES
};

static const struct fbk_protobuf_field request_fields[] = {
    {1, MESSAGE, REQUEST_HEADER, HEADER},
    {FBK_APACHE_BODY_ADD, MESSAGE, REQUEST_ADD, ADD},
    {FBK_APACHE_BODY_READ, MESSAGE, REQUEST_READ, READ},
    {FBK_APACHE_BODY_AUTH, MESSAGE, REQUEST_AUTH, AUTH},
    {FBK_APACHE_BODY_WRITE_LAC, MESSAGE, REQUEST_WRITE_LAC, WRITE_LAC},
    {FBK_APACHE_BODY_READ_LAC, MESSAGE, REQUEST_READ_LAC, READ_LAC},
    {FBK_APACHE_BODY_INFO, MESSAGE, REQUEST_INFO, INFO},
    {FBK_APACHE_BODY_START_TLS, MESSAGE, REQUEST_START_TLS, START_TLS},
    {FBK_APACHE_BODY_FORCE, MESSAGE, REQUEST_FORCE, FORCE},
    {FBK_APACHE_BODY_LIST, MESSAGE, REQUEST_LIST, LIST},
    {200, FBK_PROTOBUF_MESSAGES, REQUEST_CONTEXT, CONTEXT},
};
static const struct fbk_protobuf_field request_header_fields[] = {
    {1, ENUM, REQUEST_HEADER_VERSION, PROTOCOL_VERSION},
    {2, ENUM, REQUEST_HEADER_OPERATION, OPERATION_TYPE},
    {3, INT64, REQUEST_HEADER_TRANSACTION_ID, 0},
    {4, FBK_PROTOBUF_UINT32, REQUEST_HEADER_PRIORITY, 0},
};
static const struct fbk_protobuf_field request_read_fields[] = {
    {1, INT64, REQUEST_READ_LEDGER_ID, 0},  {2, INT64, REQUEST_READ_ENTRY_ID, 0},
    {3, BYTES, REQUEST_READ_MASTER_KEY, 0}, {4, INT64, REQUEST_READ_PREVIOUS_LAC, 0},
    {5, INT64, REQUEST_READ_TIMEOUT, 0},    {100, ENUM, REQUEST_READ_FLAG, READ_FLAG},
};
static const struct fbk_protobuf_field request_add_fields[] = {
    {1, INT64, REQUEST_ADD_LEDGER_ID, 0},
    {2, INT64, REQUEST_ADD_ENTRY_ID, 0},
    {3, BYTES, REQUEST_ADD_MASTER_KEY, 0},
    {4, BYTES, REQUEST_ADD_BODY, 0},
    {5, FBK_PROTOBUF_INT32, REQUEST_ADD_WRITE_FLAGS, 0},
    {100, ENUM, REQUEST_ADD_FLAG, ADD_FLAG},
};
static const struct fbk_protobuf_field request_auth_fields[] = {
    {1, BYTES, REQUEST_AUTH_PLUGIN, 0},
    {2, BYTES, REQUEST_AUTH_PAYLOAD, 0},
};
static const struct fbk_protobuf_field request_write_lac_fields[] = {
    {1, INT64, REQUEST_WRITE_LAC_LEDGER_ID, 0},
    {2, INT64, REQUEST_WRITE_LAC_LAC, 0},
    {3, BYTES, REQUEST_WRITE_LAC_MASTER_KEY, 0},
    {4, BYTES, REQUEST_WRITE_LAC_BODY, 0},
};
static const struct fbk_protobuf_field request_read_lac_fields[] = {
    {1, INT64, REQUEST_READ_LAC_LEDGER_ID, 0}};
static const struct fbk_protobuf_field request_info_fields[] = {{1, INT64, REQUEST_INFO_WANTED, 0}};
static const struct fbk_protobuf_field request_force_fields[] = {
    {1, INT64, REQUEST_FORCE_LEDGER_ID, 0}};
static const struct fbk_protobuf_field request_list_fields[] = {
    {1, INT64, REQUEST_LIST_LEDGER_ID, 0}};
static const struct fbk_protobuf_field request_context_fields[] = {
    {1, BYTES, REQUEST_CONTEXT_KEY, 0},
    {2, BYTES, REQUEST_CONTEXT_VALUE, 0},
};

static const struct fbk_protobuf_message request_messages[] = {
    [REQUEST] = {request_fields, COUNT(request_fields), 0, BIT(REQUEST_HEADER),
                 BITS(REQUEST_HEADER, REQUEST_CONTEXT)},
    [HEADER] = {request_header_fields, COUNT(request_header_fields), BIT(REQUEST_HEADER),
                BITS(REQUEST_HEADER_VERSION, REQUEST_HEADER_TRANSACTION_ID),
                BITS(REQUEST_HEADER_VERSION, REQUEST_HEADER_PRIORITY)},
    [READ] = {request_read_fields, COUNT(request_read_fields), BIT(REQUEST_READ),
              BITS(REQUEST_READ_LEDGER_ID, REQUEST_READ_ENTRY_ID),
              BITS(REQUEST_READ_LEDGER_ID, REQUEST_READ_FLAG)},
    [ADD] = {request_add_fields, COUNT(request_add_fields), BIT(REQUEST_ADD),
             BITS(REQUEST_ADD_LEDGER_ID, REQUEST_ADD_BODY),
             BITS(REQUEST_ADD_LEDGER_ID, REQUEST_ADD_FLAG)},
    [AUTH] = {request_auth_fields, COUNT(request_auth_fields), BIT(REQUEST_AUTH),
              BITS(REQUEST_AUTH_PLUGIN, REQUEST_AUTH_PAYLOAD),
              BITS(REQUEST_AUTH_PLUGIN, REQUEST_AUTH_PAYLOAD)},
    [WRITE_LAC] = {request_write_lac_fields, COUNT(request_write_lac_fields),
                   BIT(REQUEST_WRITE_LAC),
                   BITS(REQUEST_WRITE_LAC_LEDGER_ID, REQUEST_WRITE_LAC_BODY),
                   BITS(REQUEST_WRITE_LAC_LEDGER_ID, REQUEST_WRITE_LAC_BODY)},
    [READ_LAC] = {request_read_lac_fields, 1, BIT(REQUEST_READ_LAC),
                  BIT(REQUEST_READ_LAC_LEDGER_ID), BIT(REQUEST_READ_LAC_LEDGER_ID)},
    [INFO] = {request_info_fields, 1, BIT(REQUEST_INFO), 0, BIT(REQUEST_INFO_WANTED)},
    [START_TLS] = {NULL, 0, BIT(REQUEST_START_TLS), 0, 0},
    [FORCE] = {request_force_fields, 1, BIT(REQUEST_FORCE), BIT(REQUEST_FORCE_LEDGER_ID),
               BIT(REQUEST_FORCE_LEDGER_ID)},
    [LIST] = {request_list_fields, 1, BIT(REQUEST_LIST), BIT(REQUEST_LIST_LEDGER_ID),
              BIT(REQUEST_LIST_LEDGER_ID)},
    [CONTEXT] = {request_context_fields, COUNT(request_context_fields), BIT(REQUEST_CONTEXT),
                 BITS(REQUEST_CONTEXT_KEY, REQUEST_CONTEXT_VALUE),
                 BITS(REQUEST_CONTEXT_KEY, REQUEST_CONTEXT_VALUE)},
};
const struct fbk_protobuf_schema fbk_apache_requests = {request_messages, REQUEST_MESSAGES, enums};

/* ------------ Response */

enum {
    RESPONSE_MESSAGES = CONTEXT
}; /* the same numbers as above, but no context */

static const struct fbk_protobuf_field response_fields[] = {
    {1, MESSAGE, RESPONSE_HEADER, HEADER},
    {FBK_APACHE_RESPONSE_STATUS, ENUM, RESPONSE_STATUS, STATUS_CODE},
    {FBK_APACHE_BODY_ADD, MESSAGE, RESPONSE_ADD, ADD},
    {FBK_APACHE_BODY_READ, MESSAGE, RESPONSE_READ, READ},
    {FBK_APACHE_BODY_AUTH, MESSAGE, RESPONSE_AUTH, AUTH},
    {FBK_APACHE_BODY_WRITE_LAC, MESSAGE, RESPONSE_WRITE_LAC, WRITE_LAC},
    {FBK_APACHE_BODY_READ_LAC, MESSAGE, RESPONSE_READ_LAC, READ_LAC},
    {FBK_APACHE_BODY_INFO, MESSAGE, RESPONSE_INFO, INFO},
    {FBK_APACHE_BODY_START_TLS, MESSAGE, RESPONSE_START_TLS, START_TLS},
    {FBK_APACHE_BODY_FORCE, MESSAGE, RESPONSE_FORCE, FORCE},
    {FBK_APACHE_BODY_LIST, MESSAGE, RESPONSE_LIST, LIST},
};
static const struct fbk_protobuf_field response_header_fields[] = {
    {1, ENUM, RESPONSE_HEADER_VERSION, PROTOCOL_VERSION},
    {2, ENUM, RESPONSE_HEADER_OPERATION, OPERATION_TYPE},
    {3, INT64, RESPONSE_HEADER_TRANSACTION_ID, 0},
    {4, FBK_PROTOBUF_UINT32, RESPONSE_HEADER_PRIORITY, 0},
};
static const struct fbk_protobuf_field response_read_fields[] = {
    {1, ENUM, RESPONSE_READ_STATUS, STATUS_CODE}, {2, INT64, RESPONSE_READ_LEDGER_ID, 0},
    {3, INT64, RESPONSE_READ_ENTRY_ID, 0},        {4, BYTES, RESPONSE_READ_BODY, 0},
    {5, INT64, RESPONSE_READ_MAX_LAC, 0},         {6, INT64, RESPONSE_READ_LAC_TIME, 0},
};
static const struct fbk_protobuf_field response_add_fields[] = {
    {1, ENUM, RESPONSE_ADD_STATUS, STATUS_CODE},
    {2, INT64, RESPONSE_ADD_LEDGER_ID, 0},
    {3, INT64, RESPONSE_ADD_ENTRY_ID, 0},
};
static const struct fbk_protobuf_field response_auth_fields[] = {
    {1, BYTES, RESPONSE_AUTH_PLUGIN, 0},
    {2, BYTES, RESPONSE_AUTH_PAYLOAD, 0},
};
static const struct fbk_protobuf_field response_write_lac_fields[] = {
    {1, ENUM, RESPONSE_WRITE_LAC_STATUS, STATUS_CODE},
    {2, INT64, RESPONSE_WRITE_LAC_LEDGER_ID, 0},
};
static const struct fbk_protobuf_field response_read_lac_fields[] = {
    {1, ENUM, RESPONSE_READ_LAC_STATUS, STATUS_CODE},
    {2, INT64, RESPONSE_READ_LAC_LEDGER_ID, 0},
    {3, BYTES, RESPONSE_READ_LAC_BODY, 0},
    {4, BYTES, RESPONSE_READ_LAC_LAST_ENTRY, 0},
};
static const struct fbk_protobuf_field response_info_fields[] = {
    {1, ENUM, RESPONSE_INFO_STATUS, STATUS_CODE},
    {2, INT64, RESPONSE_INFO_TOTAL, 0},
    {3, INT64, RESPONSE_INFO_FREE, 0},
};
static const struct fbk_protobuf_field response_force_fields[] = {
    {1, ENUM, RESPONSE_FORCE_STATUS, STATUS_CODE},
    {2, INT64, RESPONSE_FORCE_LEDGER_ID, 0},
};
static const struct fbk_protobuf_field response_list_fields[] = {
    {1, ENUM, RESPONSE_LIST_STATUS, STATUS_CODE},
    {2, INT64, RESPONSE_LIST_LEDGER_ID, 0},
    {3, BYTES, RESPONSE_LIST_AVAILABILITY, 0},
};

static const struct fbk_protobuf_message response_messages[] = {
    [REQUEST] = {response_fields, COUNT(response_fields), 0,
                 BIT(RESPONSE_HEADER) | BIT(RESPONSE_STATUS),
                 BITS(RESPONSE_HEADER, RESPONSE_STATUS)},
    [HEADER] = {response_header_fields, COUNT(response_header_fields), BIT(RESPONSE_HEADER),
                BITS(RESPONSE_HEADER_VERSION, RESPONSE_HEADER_TRANSACTION_ID),
                BITS(RESPONSE_HEADER_VERSION, RESPONSE_HEADER_PRIORITY)},
    [READ] = {response_read_fields, COUNT(response_read_fields), BIT(RESPONSE_READ),
              BITS(RESPONSE_READ_STATUS, RESPONSE_READ_ENTRY_ID),
              BITS(RESPONSE_READ_STATUS, RESPONSE_READ_LAC_TIME)},
    [ADD] = {response_add_fields, COUNT(response_add_fields), BIT(RESPONSE_ADD),
             BITS(RESPONSE_ADD_STATUS, RESPONSE_ADD_ENTRY_ID),
             BITS(RESPONSE_ADD_STATUS, RESPONSE_ADD_ENTRY_ID)},
    [AUTH] = {response_auth_fields, COUNT(response_auth_fields), BIT(RESPONSE_AUTH),
              BITS(RESPONSE_AUTH_PLUGIN, RESPONSE_AUTH_PAYLOAD),
              BITS(RESPONSE_AUTH_PLUGIN, RESPONSE_AUTH_PAYLOAD)},
    [WRITE_LAC] = {response_write_lac_fields, COUNT(response_write_lac_fields),
                   BIT(RESPONSE_WRITE_LAC),
                   BITS(RESPONSE_WRITE_LAC_STATUS, RESPONSE_WRITE_LAC_LEDGER_ID),
                   BITS(RESPONSE_WRITE_LAC_STATUS, RESPONSE_WRITE_LAC_LEDGER_ID)},
    [READ_LAC] = {response_read_lac_fields, COUNT(response_read_lac_fields), BIT(RESPONSE_READ_LAC),
                  BITS(RESPONSE_READ_LAC_STATUS, RESPONSE_READ_LAC_LEDGER_ID),
                  BITS(RESPONSE_READ_LAC_STATUS, RESPONSE_READ_LAC_LAST_ENTRY)},
    [INFO] = {response_info_fields, COUNT(response_info_fields), BIT(RESPONSE_INFO),
              BIT(RESPONSE_INFO_STATUS), BITS(RESPONSE_INFO_STATUS, RESPONSE_INFO_FREE)},
    [START_TLS] = {NULL, 0, BIT(RESPONSE_START_TLS), 0, 0},
    [FORCE] = {response_force_fields, COUNT(response_force_fields), BIT(RESPONSE_FORCE),
               BITS(RESPONSE_FORCE_STATUS, RESPONSE_FORCE_LEDGER_ID),
               BITS(RESPONSE_FORCE_STATUS, RESPONSE_FORCE_LEDGER_ID)},
    [LIST] = {response_list_fields, COUNT(response_list_fields), BIT(RESPONSE_LIST),
              BITS(RESPONSE_LIST_STATUS, RESPONSE_LIST_LEDGER_ID),
              BITS(RESPONSE_LIST_STATUS, RESPONSE_LIST_AVAILABILITY)},
};
const struct fbk_protobuf_schema fbk_apache_responses = {response_messages, RESPONSE_MESSAGES,
                                                         enums};

/* ------------ AuthMessage */

static const struct fbk_protobuf_field auth_fields[] = {{1, BYTES, AUTH_PLUGIN, 0},
                                                        {2, BYTES, AUTH_PAYLOAD, 0}};
static const struct fbk_protobuf_message auth_messages[] = {
    {auth_fields, COUNT(auth_fields), 0, BITS(AUTH_PLUGIN, AUTH_PAYLOAD),
     BITS(AUTH_PLUGIN, AUTH_PAYLOAD)},
};
const struct fbk_protobuf_schema fbk_apache_auth_message = {auth_messages, 1, enums};
