/* SPDX-License-Identifier: Apache-2.0 */
#include "unicode.h"

struct unicode_range {
    uint32_t first;
    uint32_t last;
};

#include "unicode_table.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

size_t unicode_decode(const char *bytes, size_t n, uint32_t *code_out) {
    /* Smallest code point that needs each length: anything below it is an overlong form. */
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t lead = (uint8_t)bytes[0];
    size_t length = lead < 0x80 ? 1 : lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf8 ? 4 : 0;
    uint32_t code = length == 1 ? lead : lead & (0x7fu >> length);
    *code_out = UNICODE_INVALID;
    if (length == 0 || length > n)
        return 1;
    for (size_t i = 1; i < length; i++) {
        if (((uint8_t)bytes[i] & 0xc0) != 0x80)
            return 1;
        code = code << 6 | ((uint8_t)bytes[i] & 0x3f);
    }
    if (code < smallest[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 1;
    *code_out = code;
    return length;
}

size_t unicode_encode_short(uint32_t code, char *bytes_out) {
    if (code < 0x80) {
        bytes_out[0] = (char)code;
        return 1;
    }
    bytes_out[0] = (char)(0xc0 | code >> 6);
    bytes_out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

static int is_in(uint32_t code, const struct unicode_range *ranges, size_t n) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && ranges[low].first <= code;
}

static enum unicode_class classify_ascii(uint32_t code) {
    if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z')
        return UNICODE_LETTER;
    if (code >= '0' && code <= '9')
        return UNICODE_NUMBER;
    return code == ' ' || (code >= '\t' && code <= '\r') ? UNICODE_SPACE : UNICODE_OTHER;
}

enum unicode_class unicode_classify(uint32_t code) {
    if (code < 0x80)
        return classify_ascii(code);
    if (is_in(code, letters, COUNT(letters)))
        return UNICODE_LETTER;
    if (is_in(code, numbers, COUNT(numbers)))
        return UNICODE_NUMBER;
    return is_in(code, spaces, COUNT(spaces)) ? UNICODE_SPACE : UNICODE_OTHER;
}
