/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include "tools.h"

int cmd_run(int argc, char **argv) {
    run r = {0};
    int code = run_parse(argc, argv, &run_argp, &r.options, &r.options);
    if (code != 0)
        return code;
    tool_watch_interrupt();
    code = run_load(&r);
    if (code == 0)
        code = run_prefill(&r);
    if (code == 0 && !r.stopped)
        code = run_decode(&r);
    if (code == 0)
        code = run_print(&r);
    run_close(&r);
    return code;
}
