// flatbuffers' own verifier over code that flatc made from our schema: what wire/verify.c has to agree with.
#include <cstdint>

#include "protocol_generated.h"

extern "C" int fbk_oracle_verify(const uint8_t *frame, size_t size, int is_response);

int
fbk_oracle_verify(const uint8_t *frame, size_t size, int is_response)
{
    // The library reads the length before it checks that there are four bytes.
    if (size < 4)
        return 0;
    flatbuffers::Verifier verifier(frame, size);
    if (is_response)
        return verifier.VerifySizePrefixedBuffer<fastbk::wire::generated::Response>(nullptr);
    return verifier.VerifySizePrefixedBuffer<fastbk::wire::generated::Request>(nullptr);
}
