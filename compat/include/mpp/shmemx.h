/* SPDX-License-Identifier: Apache-2.0 */
/* Where older programs expect shmemx.h. */
#include "../shmemx.h"
